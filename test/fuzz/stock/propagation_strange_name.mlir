// pw-opt -p sdy-propagation-pipeline   was: crash SIGABRT passes/driver.py:218 _run running sdy-propagation-pipeline, case 8207
"builtin.module"() ({
  "sdy.mesh"() <{mesh = #sdy.mesh<["x"=1]>, sym_name = "mesh"}> : () -> ()
  "pw.slice"() {mesh = @mesh, sym_name = "s0"} : () -> ()
  "func.func"() <{function_type = (tensor<100x64xf32>) -> tensor<100x64xf32>, sym_name = "P('x')"}> ({
  ^bb0(%arg3: tensor<100x64xf32>):
    %0 = "pw.launch"(%arg3) {callee = @f, slice = @s0} : (tensor<100x64xf32>) -> tensor<100x64xf32>
    "func.return"(%arg3) : (tensor<100x64xf32>) -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<100x64xf32>) -> tensor<100x64xf32>, sym_name = "f", sym_visibility = "private"}> ({
  ^bb0(%arg2: tensor<100x64xf32>):
    "func.return"(%arg2) : (tensor<100x64xf32>) -> ()
  }) : () -> ()
}) : () -> ()
