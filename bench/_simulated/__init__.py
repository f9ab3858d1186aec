"""Cluster of any number of hosts in simulated time, under the cores that control real ones.

`costs.py` has the measured costs of control. `processor.py` is a core of a machine, `fleet.py` the hosts with
their devices. `control.py` sends steps to them and handles their replies, with the `runtime.control` of a
controller; `own_controller.py` and `service.py` request the steps. `figures.py` computes figures from that.
"""
