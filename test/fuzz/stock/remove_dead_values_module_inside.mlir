// pw-opt -p remove-dead-values   was: crash SIGSEGV passes/driver.py:218 _run running remove-dead-values, case 3520
!x = tensor<4xf32>
  func.func private @g(%x: !x) -> !x {
    return %x : !x
  }
module @two_slices_wait_for_each_other {
"pw.launch"() ({
}) : () -> ()
}
