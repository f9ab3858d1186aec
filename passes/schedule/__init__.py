"""Schedule phase: from one microbatch of one replica to all launches, ordered. A room for each step."""
