// RUN: pw-opt %s --pw-import | filecheck %s

// Two leaves of an optimizer, each with constants and a bias correction of its own. What reads constants and
// scalar arguments alone is kept once; what reads an array stays, since where it is done decides what crosses.

!x = tensor<4xf32>
!s = tensor<f32>
module @optimizer {
  sdy.mesh @mesh = <["x"=1]>
  "pw.slice"() {sym_name = "s0", mesh = @mesh} : () -> ()
  // CHECK-LABEL: func.func public @main
  // CHECK-SAME: %[[COUNT:arg0]]: {{.*}}, %[[X:arg1]]:
  func.func public @main(%count: !s, %x: !x) -> (!x, !x, !x, !x, !x) {
    // CHECK: %[[DECAY:.*]] = stablehlo.constant dense<5.0{{.*}}>
    // CHECK-NEXT: %[[POWER:.*]] = stablehlo.power %[[DECAY]], %[[COUNT]]
    // CHECK-NEXT: %[[RATE:.*]] = stablehlo.broadcast_in_dim %[[POWER]]
    %decay = stablehlo.constant dense<0.5> : !s
    %power = stablehlo.power %decay, %count : !s
    %rate = stablehlo.broadcast_in_dim %power, dims = [] : (!s) -> !x
    // CHECK-NEXT: %[[M0:.*]] = stablehlo.multiply %[[X]], %[[RATE]]
    %m0 = stablehlo.multiply %x, %rate : !x
    %decay_1 = stablehlo.constant dense<0.5> : !s
    %power_1 = stablehlo.power %decay_1, %count : !s
    %rate_1 = stablehlo.broadcast_in_dim %power_1, dims = [] : (!s) -> !x
    // CHECK-NEXT: %[[M1:.*]] = stablehlo.multiply %[[X]], %[[RATE]]
    %m1 = stablehlo.multiply %x, %rate_1 : !x
    // Both results may be given up one day, and so may what a launch reads.
    // CHECK-NEXT: %[[Z0:.*]] = stablehlo.constant dense<0.0{{.*}}> : tensor<4xf32>
    // CHECK-NEXT: %[[Z1:.*]] = stablehlo.constant dense<0.0{{.*}}> : tensor<4xf32>
    %z0 = stablehlo.constant dense<0.0> : !x
    %z1 = stablehlo.constant dense<0.0> : !x
    // CHECK: %[[Y:.*]] = "pw.launch"(%[[M1]])
    %y = call @f(%m1) {mhlo.frontend_attributes = {pw.slice = "s0", pw.name = "f", pw.kind = "fwd", pw.call = "0"}} : (!x) -> !x
    // CHECK-NEXT: return %[[M0]], %[[M1]], %[[Z0]], %[[Z1]], %[[Y]]
    return %m0, %m1, %z0, %z1, %y : !x, !x, !x, !x, !x
  }
  func.func private @f(%x: !x) -> !x { return %x : !x }
}
