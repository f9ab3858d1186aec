// pw-opt -p ''   was: reread reread: error: @ identifier expected to start with letter or _, case 14801
"builtin.module"() <{}> ({
  "func.func"() <{function_type = (tensor<4xf32>) -> tensor<4xf32>, sym_name = "main"}> ({
  ^bb0(%arg0: tensor<4xf32>):
    "func.return"(%arg0) {value = #sdy.sharding<@"", [{"data"}, {}, {?}, {"x":(1)2}], replicated={"x"}>} : (tensor<4xf32>) -> ()
  }) : () -> ()
}) {} : () -> ()
