package tools

import (
	"os/exec"
	"strings"
	"testing"
)

// What CI repeats of the tests' output: which tests failed, their messages, and nothing of those that passed. heads is how the messages begin.
func TestWhatFailed(t *testing.T) {
	for name, test := range map[string]struct{ output, want, heads string }{
		"verbose, beside others": {`=== RUN   TestA
=== RUN   TestA/one
=== PAUSE TestA/one
=== NAME  TestB
    b_test.go:5: of TestB
=== NAME  TestA/one
    a_test.go:12: the log lacks "x":
        the log
what a program prints
=== CONT  TestB
    b_test.go:6: of TestB
=== NAME  TestA/one
    a_test.go:14: more
--- PASS: TestB (0.10s)
--- FAIL: TestA (0.00s)
    --- PASS: TestA/two (0.00s)
    --- FAIL: TestA/one (0.00s)
FAIL
`, `--- FAIL: TestA (0.00s)
    --- FAIL: TestA/one (0.00s)
    a_test.go:12: the log lacks "x":
        the log
    a_test.go:14: more
`, `TestA/one: a_test.go:12: the log lacks "x": the log
TestA/one: a_test.go:14: more
`},
		"not verbose": {`ok  	example/first	0.1s
--- FAIL: TestC (0.00s)
    --- FAIL: TestC/sub (0.00s)
        c_test.go:7: not so
            second line
    --- FAIL: TestC/other (0.00s)
        c_test.go:9: nor this
FAIL
FAIL	example/second	0.3s
ok  	example/third	0.1s
`, `--- FAIL: TestC (0.00s)
    --- FAIL: TestC/sub (0.00s)
        c_test.go:7: not so
            second line
    --- FAIL: TestC/other (0.00s)
        c_test.go:9: nor this
FAIL	example/second	0.3s
`, `TestC/sub: c_test.go:7: not so second line
TestC/other: c_test.go:9: nor this
`},
		"long": {
			"--- FAIL: TestA (0.00s)\n    a_test.go:1: " + strings.Repeat("x", 1000) + "\n" + strings.Repeat("        more\n", 100),
			"--- FAIL: TestA (0.00s)\n    a_test.go:1: " + strings.Repeat("x", 223) + "\n" + strings.Repeat("        more\n", 12),
			"TestA: a_test.go:1: " + strings.Repeat("x", 380) + "\n",
		},
		"many messages": {
			"--- FAIL: TestA (0.00s)\n" + strings.Repeat("    a_test.go:1: one\n", 5),
			"--- FAIL: TestA (0.00s)\n" + strings.Repeat("    a_test.go:1: one\n", 5),
			strings.Repeat("TestA: a_test.go:1: one\n", 3),
		},
		"a message with the output of a test": {`=== RUN   TestA
    a_test.go:1: got:
        --- FAIL: TestInner (0.00s)
        ok  	inner	0.1s
FAILED, says a program
    a_test.go:2: more
--- FAIL: TestA (0.00s)
`, `--- FAIL: TestA (0.00s)
    a_test.go:1: got:
        --- FAIL: TestInner (0.00s)
        ok  	inner	0.1s
    a_test.go:2: more
`, "TestA: a_test.go:1: got: --- FAIL: TestInner (0.00s) ok  	inner	0.1s\nTestA: a_test.go:2: more\n"},
		"the same name again": {`=== RUN   TestA
    a_test.go:1: of the first
--- PASS: TestA (0.00s)
=== RUN   TestA
    a_test.go:2: of the second
--- FAIL: TestA (0.00s)
`, `--- FAIL: TestA (0.00s)
    a_test.go:2: of the second
`, "TestA: a_test.go:2: of the second\n"},
		"too late": {`=== RUN   TestA
    a_test.go:1: well
--- PASS: TestA (0.00s)
=== RUN   TestB
    b_test.go:1: waits for something
panic: test timed out after 1s
`, `--- not ended: TestB
    b_test.go:1: waits for something
panic: test timed out after 1s
`, "TestB: b_test.go:1: waits for something\n"},
		"other failures": {`pkg/x/x.go:3:4: undefined: y
said by nobody
6.1.0: pkg/writer FAILED (status 1)
make: *** [Makefile:3: test] Error 1
FAIL: a goroutine is left:
goroutine 7 [select]:
ok  	example/first	0.1s
`, `pkg/x/x.go:3:4: undefined: y
6.1.0: pkg/writer FAILED (status 1)
make: *** [Makefile:3: test] Error 1
FAIL: a goroutine is left:
goroutine 7 [select]:
ok  	example/first	0.1s
`, ""},
		"a race":  {"WARNING: DATA RACE\nRead at 0x1 by goroutine 7:\n", "WARNING: DATA RACE\nRead at 0x1 by goroutine 7:\n", ""},
		"nothing": {"=== RUN   TestA\n    a_test.go:1: well\n--- PASS: TestA (0.00s)\nok  	example	0.1s\n", "", ""},
	} {
		for _, awk := range []string{"awk", "mawk", "gawk"} {
			t.Run(name+" by "+awk, func(t *testing.T) {
				if _, err := exec.LookPath(awk); err != nil && awk != "awk" {
					t.Skip(err)
				}
				for heads, want := range map[string]string{"0": test.want, "3": test.heads} {
					cmd := exec.CommandContext(t.Context(), awk, "-v", "heads="+heads, "-f", "what-failed.awk")
					cmd.Stdin = strings.NewReader(test.output)
					got, err := cmd.CombinedOutput()
					if err != nil || string(got) != want {
						t.Errorf("heads=%s: %v, got:\n%s\nwant:\n%s", heads, err, got, want)
					}
				}
			})
		}
	}
}
