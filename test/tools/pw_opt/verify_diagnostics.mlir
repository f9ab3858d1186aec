// RUN: pw-opt %s --split-input-file --verify-diagnostics

// Every way to say where a diagnostic is expected.
"my.a"() : () -> () // expected-error {{'my.a' op is unknown}}
// expected-error@+1 {{'my.b' op is unknown}}
"my.b"() : () -> ()
"my.c"() : () -> ()
// expected-error@-1 {{'my.c' op is unknown}}
// expected-error@+2 {{'my.d' op is unknown}}
// expected-error@below {{'my.d' op is unknown}}
"my.d"() : () -> () "my.d"() : () -> ()
"my.e"() : () -> () "my.e"() : () -> ()
// expected-error@above {{'my.e' op is unknown}}
// expected-error@above {{'my.e' op is unknown}}
// expected-error@unknown {{'my.f' op is unknown}}
"my.f"() : () -> () loc(unknown)
// expected-error-re@below {{'my.{{[a-z]}}' op is {{un.*}}: no dialect}}
"my.g"() : () -> ()

// -----

// Notes are diagnostics too.
// expected-note@below {{see existing symbol definition here}}
func.func private @f()
// expected-error@below {{redefinition of symbol named 'f'}}
func.func private @f()
