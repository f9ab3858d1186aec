"""A cluster of as many hosts as one likes, in simulated time, under the cores that control real ones.

`costs.py` says what control costs, as it was measured. `processor.py` is a core of a machine, `fleet.py` are
the hosts with their devices. `control.py` sends steps to them and takes their answers, by the same
`runtime.control` as a controller; `own_controller.py` and `service.py` are who asks for steps. `figures.py`
asks what comes of it.
"""
