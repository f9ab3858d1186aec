// RUN: pw-opt %s --split-input-file --verify-diagnostics

// Every send has a receive ...

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 0, pw.donated}) attributes {pw.host = 0} {
    // expected-error@below {{'pw.send' op sends transfer 0, which no pw.recv receives}}
    "pw.send"(%x) {channel = @c0, index = 0, order = 0, slice = @s0} : (!x) -> ()
    return
  }
  func.func @host_1() attributes {pw.host = 1} {
    return
  }
}

// -----

// ... and every receive a send.

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @host_1() -> (!x {pw.slice = @s1, pw.number = 0}) attributes {pw.host = 1} {
    // expected-error@below {{'pw.recv' op receives transfer 3, which no pw.send sends}}
    %x = "pw.recv"() {channel = @c0, index = 3, order = 0, slice = @s1} : () -> !x
    return %x : !x
  }
}

// -----

// Nothing is received twice, nor sent twice.

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 2, value_type = !x} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 0, pw.donated}) attributes {pw.host = 0} {
    "pw.send"(%x) {channel = @c0, index = 0, order = 0, slice = @s0} : (!x) -> ()
    // expected-error@below {{'pw.send' op sends transfer 0, as another does}}
    "pw.send"(%x) {channel = @c0, index = 0, order = 1, slice = @s0} : (!x) -> ()
    return
  }
  func.func @host_1() attributes {pw.host = 1} {
    %x = "pw.recv"() {channel = @c0, index = 0, order = 0, slice = @s1} : () -> !x
    // expected-error@below {{'pw.recv' op receives transfer 0, as another does}}
    %y = "pw.recv"() {channel = @c0, index = 0, order = 1, slice = @s1} : () -> !x
    return
  }
}

// -----

// Both ends have the type of the channel ...

module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = tensor<4xf32>} : () -> ()
  func.func @host_0(%x: tensor<4xi32> {pw.slice = @s0, pw.number = 0, pw.donated}) attributes {pw.host = 0} {
    // expected-error@below {{'pw.send' op operand has type tensor<4xi32>, but channel @c0 carries tensor<4xf32>}}
    "pw.send"(%x) {channel = @c0, index = 0, order = 0, slice = @s0} : (tensor<4xi32>) -> ()
    return
  }
  func.func @host_1() attributes {pw.host = 1} {
    // expected-error@below {{'pw.recv' op result has type tensor<4xi32>, but channel @c0 carries tensor<4xf32>}}
    %x = "pw.recv"() {channel = @c0, index = 0, order = 0, slice = @s1} : () -> tensor<4xi32>
    return
  }
}

// -----

// ... and stand where it starts and ends.

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s1, dst = @s0, capacity = 1, value_type = !x} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 0, pw.donated}) attributes {pw.host = 0} {
    // expected-error@below {{'pw.send' op leaves @s0, but channel @c0 starts at @s1}}
    "pw.send"(%x) {channel = @c0, index = 0, order = 0, slice = @s0} : (!x) -> ()
    return
  }
  func.func @host_1() attributes {pw.host = 1} {
    // expected-error@below {{'pw.recv' op goes to @s1, but channel @c0 leads to @s0}}
    %x = "pw.recv"() {channel = @c0, index = 0, order = 0, slice = @s1} : () -> !x
    return
  }
}

// -----

// The two ends of a transfer name one channel.

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  "pw.channel"() {sym_name = "c1", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 0, pw.donated}) attributes {pw.host = 0} {
    "pw.send"(%x) {channel = @c0, index = 0, order = 0, slice = @s0} : (!x) -> ()
    return
  }
  func.func @host_1() attributes {pw.host = 1} {
    // expected-error@below {{'pw.recv' op receives transfer 0 from @c1, but it is sent by @c0}}
    %x = "pw.recv"() {channel = @c1, index = 0, order = 0, slice = @s1} : () -> !x
    return
  }
}

// -----

// Both ends have the shards in one order.

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 0, pw.donated}) attributes {pw.host = 0} {
    "pw.send"(%x) {channel = @c0, index = 0, order = 0, routes = array<i64: 0, 0, 0, 1>, slice = @s0} : (!x) -> ()
    return
  }
  func.func @host_1() attributes {pw.host = 1} {
    // expected-error@below {{'pw.recv' op receives transfer 0 with other `routes` than it is sent with}}
    %x = "pw.recv"() {channel = @c0, index = 0, order = 0, routes = array<i64: 0, 1, 0, 0>, slice = @s1} : () -> !x
    return
  }
}

// -----

// Routes begin at operands and devices that are there, and end at all that are.

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 0, pw.donated}) attributes {pw.host = 0} {
    // expected-error@below {{'pw.send' op `routes` names an operand it does not have; it has 1}}
    "pw.send"(%x) {channel = @c0, index = 0, order = 0, routes = array<i64: 0, 0, 1, 1>, slice = @s0} : (!x) -> ()
    // expected-error@below {{'pw.send' op expected 2 pairs in `routes` for each result, got 1 in all}}
    "pw.send"(%x) {channel = @c0, index = 1, order = 1, routes = array<i64: 0, 0>, slice = @s0} : (!x) -> ()
    return
  }
  func.func @host_1() attributes {pw.host = 1} {
    // expected-error@below {{'pw.recv' op expected 4 numbers in `routes`, a pair for each of 2 devices and 1 result, got 2}}
    %x = "pw.recv"() {channel = @c0, index = 1, order = 0, routes = array<i64: 0, 0>, slice = @s1} : () -> !x
    // expected-error@below {{'pw.recv' op expected an `index` below 131072, got 131072}}
    %y = "pw.recv"() {channel = @c0, index = 131072, order = 1, slice = @s1} : () -> !x
    return
  }
}

// -----

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 0, pw.donated}) attributes {pw.host = 0} {
    // expected-error@below {{'pw.send' op `routes` names device 1, but @s0 has 1}}
    "pw.send"(%x) {channel = @c0, index = 0, order = 0, routes = array<i64: 0, 1>, slice = @s0} : (!x) -> ()
    return
  }
  func.func @host_1() attributes {pw.host = 1} {
    %x = "pw.recv"() {channel = @c0, index = 0, order = 0, routes = array<i64: 0, 1>, slice = @s1} : () -> !x
    return
  }
}

// -----

// Device by device, what is sent as it lies is what the other side needs.

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x, sharding = #sdy.sharding<@mesh, [{"x"}]>} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 0, pw.donated}) attributes {pw.host = 0} {
    // expected-error@below {{'pw.send' op sends shards of @s0 that @s1 does not need}}
    "pw.send"(%x) {channel = @c0, index = 0, order = 0, slice = @s0} : (!x) -> ()
    return
  }
  func.func @host_1() attributes {pw.host = 1} {
    %x = "pw.recv"() {channel = @c0, index = 0, order = 0, sharding = #sdy.sharding<@mesh, [{"x"}]>, slice = @s1} : () -> !x
    return
  }
}

// -----

// What is sent goes to another host; all that a host does and holds is on its slices.

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 0} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 0, pw.donated}) attributes {pw.host = 0} {
    // expected-error@below {{'pw.send' op sends to @s1, which is on the same host; a pw.transfer does that}}
    "pw.send"(%x) {channel = @c0, index = 0, order = 0, slice = @s0} : (!x) -> ()
    %y = "pw.recv"() {channel = @c0, index = 0, order = 1, slice = @s1} : () -> !x
    return
  }
}

// -----

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  // expected-error@below {{'func.func' op argument #0 lives on @s1, which is on another host}}
  func.func @host_0(%x: !x {pw.slice = @s1, pw.number = 0}) attributes {pw.host = 0} {
    // expected-error@below {{'pw.launch' op is on @s1, which is not on host 0}}
    %y = "pw.launch"(%x) {callee = @f, order = 0, slice = @s1} : (!x) -> !x
    return
  }
  func.func private @f(!x) -> !x
}

// -----

// A host does one thing after the other.

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 0}) attributes {pw.host = 0} {
    %y = "pw.launch"(%x) {callee = @f, order = 1, slice = @s0} : (!x) -> !x
    // expected-error@below {{'pw.launch' op has order 1, but comes after what has order 1}}
    %z = "pw.launch"(%x) {callee = @f, order = 1, slice = @s0} : (!x) -> !x
    return
  }
  func.func private @f(!x) -> !x
}

// -----

// A channel keeps the order of its values, and has room for all of them.

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  // expected-error@below {{'pw.channel' op has capacity 1, but carries 2 values}}
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 1, value_type = !x} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 0, pw.donated}) attributes {pw.host = 0} {
    "pw.send"(%x) {channel = @c0, index = 0, order = 0, slice = @s0} : (!x) -> ()
    "pw.send"(%x) {channel = @c0, index = 1, order = 1, slice = @s0} : (!x) -> ()
    return
  }
  func.func @host_1() attributes {pw.host = 1} {
    %x = "pw.recv"() {channel = @c0, index = 1, order = 0, slice = @s1} : () -> !x
    // expected-error@below {{'pw.recv' op transfer 0 is received after transfer 1 on @c0}}
    %y = "pw.recv"() {channel = @c0, index = 0, order = 1, slice = @s1} : () -> !x
    return
  }
}

// -----

// What is sent as it is lasts to the end: a launch must not take it, ...

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  "pw.channel"() {sym_name = "c0", src = @s0, dst = @s1, capacity = 4, value_type = !x} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 0, pw.donated}, %y: !x {pw.slice = @s0, pw.number = 1}, %z: !x {pw.slice = @s0, pw.number = 2, pw.donated}) -> (!x {pw.slice = @s0, pw.number = 0}) attributes {pw.host = 0} {
    // expected-error@below {{'pw.send' op sends without a copy what the launch of @takes donates}}
    "pw.send"(%x) {channel = @c0, index = 0, order = 0, slice = @s0} : (!x) -> ()
    %a = "pw.launch"(%x) {callee = @takes, order = 1, slice = @s0} : (!x) -> !x
    // expected-error@below {{'pw.send' op sends without a copy what is returned}}
    "pw.send"(%a) {channel = @c0, index = 1, order = 2, slice = @s0} : (!x) -> ()
    // expected-error@below {{'pw.send' op sends without a copy an argument that the caller keeps, and may donate}}
    "pw.send"(%y) {channel = @c0, index = 2, order = 3, slice = @s0} : (!x) -> ()
    // expected-error@below {{'pw.send' op sends without a copy a value that is released before the end}}
    "pw.send"(%z) {channel = @c0, index = 3, order = 4, slice = @s0} : (!x) -> ()
    "pw.release"(%z) : (!x) -> ()
    %b = "pw.launch"(%y) {callee = @f, order = 5, slice = @s0} : (!x) -> !x
    return %a : !x
  }
  func.func private @takes(!x {tf.aliasing_output = 0 : i32}) -> !x
  func.func private @f(!x) -> !x
}

// -----

// Arguments and results are numbered, each number once on a host, and mean the same on all hosts.

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  // expected-error@below {{'func.func' op argument #0 does not belong to the program: it has no `pw.number`}}
  func.func @host_0(%x: !x {pw.slice = @s0}) attributes {pw.host = 0} {
    return
  }
}

// -----

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  // expected-error@below {{'func.func' op argument #1 is argument 2 of the program, as is another}}
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 2}, %y: !x {pw.slice = @s0, pw.number = 2}) attributes {pw.host = 0} {
    return
  }
}

// -----

!x = tensor<4xf32>
module attributes {pw.form = "host"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh, host = 0} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh, host = 1} : () -> ()
  func.func @host_0(%x: !x {pw.slice = @s0, pw.number = 2}) attributes {pw.host = 0} {
    return
  }
  // expected-error@below {{'func.func' op argument 2 of the program is a tensor<f32> here, but a tensor<4xf32> on host 0}}
  func.func @host_1(%x: tensor<f32> {pw.slice = @s1, pw.number = 2}) attributes {pw.host = 1} {
    return
  }
}

// -----

// A host has one function, which is public and which nothing calls; there is no other program.

module attributes {pw.form = "host"} {
  func.func @a() attributes {pw.host = 0} {
    return
  }
  // expected-error@below {{'func.func' op is a second function for host 0}}
  func.func @b() attributes {pw.host = 0} {
    return
  }
  // expected-error@below {{'func.func' op is not legal in a module with host functions}}
  func.func @main() {
    // expected-error@below {{'func.call' op refers to @a, which is a host function}}
    call @a() : () -> ()
    return
  }
}

// -----

module attributes {pw.form = "host"} {
  // expected-error@below {{'func.func' op must be public: it is the function of a host}}
  func.func private @a() attributes {pw.host = 0} {
    return
  }
}

// -----

// Functions of hosts belong into no other form, and slices have hosts from `bound` on.

module attributes {pw.form = "scheduled"} {
  func.func @main() {
    return
  }
  // expected-error@below {{'func.func' op is a host function, which is not legal in form 'scheduled'}}
  func.func @a() attributes {pw.host = 0} {
    return
  }
}

// -----

module attributes {pw.form = "bound"} {
  sdy.mesh @mesh = <["x"=1]>
  // expected-error@below {{'pw.slice' op has no `host`, which form 'bound' requires}}
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main() {
    return
  }
}
