// RUN: pw-opt %s --split-input-file --verify-diagnostics

// A part gets what it takes, and is a module beside @main.
module attributes {pw.form = "parts"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: tensor<f32> {pw.slice = @s0}) -> (tensor<f32> {pw.slice = @s0}) {
    // expected-error@below {{'pw.run' op attribute `part` refers to @nothing, which is not in the module}}
    %0 = "pw.run"(%x) {part = @nothing} : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}

// -----

module attributes {pw.form = "parts"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: tensor<i1> {pw.slice = @s0}, %y: tensor<4xf32> {pw.slice = @s0}) -> (tensor<i1> {pw.slice = @s0}) {
    // expected-error@below {{'pw.run' op has 2 operands, but @one has 1}}
    %0 = "pw.run"(%x, %y) {part = @one} : (tensor<i1>, tensor<4xf32>) -> tensor<i1>
    // expected-error@below {{'pw.run' op operand #0 has type tensor<4xf32>, but that of @one tensor<i1>}}
    %1 = "pw.run"(%y) {part = @one} : (tensor<4xf32>) -> tensor<i1>
    return %1 : tensor<i1>
  }
  module @one attributes {pw.form = "sharded"} {
    sdy.mesh @mesh = <["x"=1]>
    "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
    func.func @main(%x: tensor<i1> {pw.slice = @s0}) -> (tensor<i1> {pw.slice = @s0}) {
      return %x : tensor<i1>
    }
  }
}

// -----

// What a part consumes is read by nobody else; of what turns share it consumes nothing.
module attributes {pw.form = "parts"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: tensor<i1> {pw.slice = @s0, pw.donated}, %y: tensor<i1> {pw.slice = @s0}) -> (tensor<i1> {pw.slice = @s0}) {
    // expected-error@+2 {{'pw.repeat' op consumes operand #1, which @turns gets every time}}
    // expected-error@+1 {{'pw.repeat' op consumes argument #1, which is not donated}}
    %0 = "pw.repeat"(%x, %y) {part = @turns, until = 0} : (tensor<i1>, tensor<i1>) -> tensor<i1>
    // expected-error@below {{'pw.run' op reads a value that @turns has consumed}}
    %1 = "pw.run"(%0, %x) {part = @after} : (tensor<i1>, tensor<i1>) -> tensor<i1>
    return %1 : tensor<i1>
  }
  module @turns attributes {pw.form = "sharded"} {
    sdy.mesh @mesh = <["x"=1]>
    "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
    func.func @main(%x: tensor<i1> {pw.slice = @s0, pw.donated}, %y: tensor<i1> {pw.slice = @s0, pw.donated}) -> (tensor<i1> {pw.slice = @s0}) {
      return %x : tensor<i1>
    }
  }
  module @after attributes {pw.form = "sharded"} {
    sdy.mesh @mesh = <["x"=1]>
    "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
    func.func @main(%x: tensor<i1> {pw.slice = @s0}, %y: tensor<i1> {pw.slice = @s0}) -> (tensor<i1> {pw.slice = @s0}) {
      return %x : tensor<i1>
    }
  }
}

// -----

// A loop passes on what it gets, and one of its results says when it ends.
module attributes {pw.form = "parts"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: tensor<f32> {pw.slice = @s0}) -> (tensor<f32> {pw.slice = @s0}) {
    // expected-error@below {{'pw.repeat' op expected result #0 to be of type tensor<i1>, as `until` names it}}
    %0 = "pw.repeat"(%x) {part = @turns, until = 0} : (tensor<f32>) -> tensor<f32>
    // expected-error@below {{'pw.repeat' op result #0 has type tensor<i1>, but operand #0 has tensor<f32>}}
    %1 = "pw.repeat"(%x) {part = @turns, until = 0} : (tensor<f32>) -> tensor<i1>
    // expected-error@below {{'pw.repeat' op has no result #1, which `until` names}}
    %2 = "pw.repeat"(%x) {part = @turns, until = 1} : (tensor<f32>) -> tensor<f32>
    return %2 : tensor<f32>
  }
  module @turns attributes {pw.form = "sharded"} {
    func.func @main() {
      return
    }
  }
}

// -----

// The program returns what its last part does.
module attributes {pw.form = "parts"} {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  func.func @main(%x: tensor<f32> {pw.slice = @s0}) -> (tensor<f32> {pw.slice = @s0}) {
    // expected-error@below {{'func.return' op does not return the results of a `pw.run` in front of it, in their order}}
    return %x : tensor<f32>
  }
  module @one attributes {pw.form = "sharded"} {
    func.func @main() {
      return
    }
  }
}

// -----

// All parts are programs, in one form, and have no parts themselves. What is wrong in one of them is said there.
module attributes {pw.form = "parts"} {
  func.func @main() {
    "pw.run"() {part = @one} : () -> ()
    return
  }
  module @one attributes {pw.form = "sharded"} {
    func.func @main() {
      return
    }
  }
  // expected-error@below {{'builtin.module' op is in the form "scheduled", but another sub-program in the form "sharded"}}
  module @two attributes {pw.form = "scheduled"} {
    func.func @main() {
      return
    }
  }
  // expected-error@+2 {{'builtin.module' op is a sub-program, but has no function @main with a body}}
  // expected-error@+1 {{'builtin.module' op is a sub-program, but claims no form (`pw.form`)}}
  module @three {
  }
}

// -----

module attributes {pw.form = "parts"} {
  func.func @main() {
    return
  }
  // expected-error@below {{'builtin.module' op is a sub-program and cannot have sub-programs itself}}
  module @one attributes {pw.form = "parts"} {
  }
  module @two attributes {pw.form = "sharded"} {
    // expected-error@below {{'pw.slice' op attribute `mesh` refers to @mesh, which is not in the module}}
    "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  }
}

// -----

// expected-error@below {{'builtin.module' op has no function @main, which runs its sub-programs}}
module attributes {pw.form = "parts"} {
  module @one attributes {pw.form = "sharded"} {
    func.func @main() {
      return
    }
  }
}

// -----

// What turns pass on lies where, and as, the next one takes it.
module attributes {pw.form = "parts"} {
  sdy.mesh @mesh = <["x"=2]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
  func.func @main(%d: tensor<i1> {pw.slice = @s0}, %x: tensor<4xf32> {pw.slice = @s0}, %y: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0}) {
    // expected-error@+2 {{'pw.repeat' op result #1 of @turns is on @s1, but operand #1 on @s0}}
    // expected-error@+1 {{'pw.repeat' op result #2 of @turns is on @s0, sharded as #sdy.sharding<@mesh, [{"x"}]>, but operand #2 on @s0}}
    %0:3 = "pw.repeat"(%d, %x, %y) {part = @turns, until = 0} : (tensor<i1>, tensor<4xf32>, tensor<4xf32>) -> (tensor<i1>, tensor<4xf32>, tensor<4xf32>)
    %1 = "pw.run"(%0#2) {part = @after} : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  module @turns attributes {pw.form = "sharded"} {
    sdy.mesh @mesh = <["x"=2]>
    "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
    "pw.slice"() {sym_name = "s1", mesh = @mesh} : () -> ()
    func.func @main(%d: tensor<i1> {pw.slice = @s0}, %x: tensor<4xf32> {pw.slice = @s0}, %y: tensor<4xf32> {pw.slice = @s0}) -> (tensor<i1> {pw.slice = @s0}, tensor<4xf32> {pw.slice = @s1}, tensor<4xf32> {pw.slice = @s0, sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
      %0 = "pw.transfer"(%x) {slice = @s1} : (tensor<4xf32>) -> tensor<4xf32>
      %1 = "pw.launch"(%y) {callee = @f, slice = @s0} : (tensor<4xf32>) -> tensor<4xf32>
      return %d, %0, %1 : tensor<i1>, tensor<4xf32>, tensor<4xf32>
    }
    func.func private @f(%x: tensor<4xf32>) -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
      return %x : tensor<4xf32>
    }
  }
  module @after attributes {pw.form = "sharded"} {
    sdy.mesh @mesh = <["x"=2]>
    "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
    func.func @main(%x: tensor<4xf32> {pw.slice = @s0}) -> (tensor<4xf32> {pw.slice = @s0}) {
      return %x : tensor<4xf32>
    }
  }
}
