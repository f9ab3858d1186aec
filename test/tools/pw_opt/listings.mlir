// RUN: pw-opt --list-passes | filecheck %s --check-prefix=PASSES
// RUN: pw-opt --help | filecheck %s --check-prefix=HELP
// RUN: pw-opt --show-dialects | filecheck %s --check-prefix=DIALECTS
// RUN: pw-opt --version | filecheck %s --check-prefix=VERSION

// The tool tells which passes with which options and which operations it knows.

// PASSES: {{^pw-import +[A-Z]}}
// PASSES: {{^pw-dce +[A-Z]}}
// PASSES: {{^canonicalize$}}

// HELP: usage: pw-opt [FILE] [-o FILE] [passes] [flags]
// HELP: --split-input-file
// HELP: --pw-schedule
// HELP-NEXT: {{[A-Z]}}
// HELP: policy=
// HELP: canonicalize cse symbol-dce

// DIALECTS: pw
// DIALECTS-NEXT: pw.slice     Declares a virtual slice
// DIALECTS: pw.launch    A gang-scheduled execution

// VERSION: {{^pw-opt .* \(jaxlib [0-9.]+\)$}}
