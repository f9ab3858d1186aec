"""Names in the IR that more than one place reads.

`pw.slice` and `pw.loop` are each an operation, which declares a symbol, and a discardable attribute, which
refers to one from arguments, results and operations of other dialects. The metadata of JAX's calls has names
of its own, in `dialect/operations/metadata.py`.
"""

MAIN = "main"
"""The function that is the program."""

# On the module.
FORM = "pw.form"
TIMES = "pw.times"

# On the function that Shardy has partitioned: its meshes, and the meshes that share devices.
TOPOLOGY = "topology"
OVERLAP = "pw.overlap"

# On the main function in IFRT IR: its mark, and the ids of the devices that it numbers from 0.
IFRT_FUNCTION = "ifrt.function"
DEVICE_IDS = "pw.device_ids"

# On the functions of hosts, and on their arguments and results.
HOST = "pw.host"
NUMBER = "pw.number"

# On arguments and results of `@main`, and on operations of other dialects in it.
SLICE = "pw.slice"
LOOP = "pw.loop"
MIRRORED = "pw.mirrored"
CONDITION = "pw.condition"
BRANCH = "pw.branch"
DONATED = "pw.donated"
REPLACED_BY = "pw.replaced_by"
CONSTANT = "pw.constant"
SPEC = "pw.spec"
KEYS = "pw.keys"
REPLICA = "pw.replica"
BLOCK = "pw.block"

# Of Shardy, XLA and JAX, on arguments and results of functions.
SHARDING = "sdy.sharding"
ALIASING = "tf.aliasing_output"
DONOR = "jax.buffer_donor"
ARGUMENT_INFO = "jax.arg_info"
RESULT_INFO = "jax.result_info"
MEMORY_KIND = "mhlo.memory_kind"
HOST_MEMORY = "pinned_host"
"""The memory kind of `jax.memory.Space.Host`, which the types of values in JAX have. Any other one besides
the default is a property of an argument alone."""

# The custom call of JAX that moves a value to another memory, and its attribute with the kind of that.
PLACE_IN_MEMORY = "annotate_device_placement"
BUFFER_PLACEMENT = "_xla_buffer_placement"

FRONTEND_ATTRIBUTES = "mhlo.frontend_attributes"
"""The attribute in which JAX puts the metadata of a call."""

# Bounds of numbers that cause work: a file must not be able to cause any amount of it.
MAX_DEVICES = 2**16
"""Limit of the devices of a mesh."""
MAX_MICROBATCHES = 2**14
"""Limit of the microbatches of a loop."""
MAX_OPERATIONS = 2**17
"""Limit of the operations of an unrolled program, and of scheduled actions."""
MAX_ELEMENTS = 2**48
"""Limit of the elements of an array."""
