"""Plans donation, releases and channels, and counts bytes alive. Imports `passes.schedule.order`."""
