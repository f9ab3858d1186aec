// RUN: not pw-opt %s --emit-schedule 2>&1 | filecheck %s

// Without a program there is no schedule to write.

// CHECK: error: 'builtin.module' op has no function @main, the program
module {
  func.func private @third()
}
