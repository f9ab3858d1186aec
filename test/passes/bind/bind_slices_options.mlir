// Options that say nothing sensible are refused before the program is read.

// RUN: not pw-opt %s -p 'pw-bind-slices{count=0}' 2>&1 | filecheck %s --check-prefix COUNT
// COUNT: count must be at least 1, got 0

// RUN: not pw-opt %s -p 'pw-bind-slices{count=2 hosts=s0:0}' 2>&1 | filecheck %s --check-prefix BOTH
// BOTH: hosts and count exclude each other

// RUN: not pw-opt %s -p 'pw-bind-slices{hosts=s0}' 2>&1 | filecheck %s --check-prefix NUMBER
// NUMBER: hosts must be slices and numbers as in s0:0,s1:1, got 's0'

// RUN: not pw-opt %s -p "pw-bind-slices{hosts='s0:0,s0:1'}" 2>&1 | filecheck %s --check-prefix TWICE
// TWICE: hosts names s0 twice

// RUN: not pw-opt %s -p 'pw-split-hosts{ahead=0}' 2>&1 | filecheck %s --check-prefix AHEAD
// AHEAD: ahead must be at least 1, got 0

// RUN: not pw-opt %s -p 'pw-split-hosts{ahead=999999999999999999}' 2>&1 | filecheck %s --check-prefix FAR
// FAR: ahead must be at most 1048576, got 999999999999999999
