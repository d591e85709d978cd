"""The orders in which the axes of a run are laid over its devices.

Ranks are numbered with the first axis innermost. `tp-cp-dp-pp` is Megatron-Core's own order
(core/parallel_state.py, `order="tp-cp-ep-dp-pp"`), `tp-cp-pp-dp` what its --use-tp-pp-dp-mapping
gives: replicas are then the outermost parts of the machine, not stages.
"""

AXIS_ORDERS = ("tp-cp-dp-pp", "tp-cp-pp-dp")
