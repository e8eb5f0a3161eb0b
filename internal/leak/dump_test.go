package leak

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// crashVariable says how the test's own program is to crash.
const crashVariable = "CANARY_TEST_CRASH"

// crashes are the ways in which a Go program writes a value down as it dies.
func crashes() map[string]func(value string) {
	return map[string]func(string){
		"string": func(value string) { panic("no user " + value) },
		"error":  func(value string) { panic(errors.New(value)) },
		"array":  func(value string) { dieWith([16]byte([]byte(value)[:16])) },
		"index":  func(value string) { _ = []byte(value)[len(value)+len(os.Args)] },
	}
}

//go:noinline
func dieWith(b [16]byte) {
	if b[0] != 0 {
		panic("no value here")
	}
}

func TestMain(m *testing.M) {
	if crash := crashes()[os.Getenv(crashVariable)]; crash != nil {
		crash(NewValue())
	}
	os.Exit(m.Run())
}

// What Go itself writes of a panic or of a stack is searched as any text: what was
// panicked with, and an argument's bytes. A string's are behind a pointer.
func TestDumpsOfACrash(t *testing.T) {
	for name, leaks := range map[string]bool{"string": true, "error": true, "array": true, "index": false} {
		crash := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		crash.Env = append(os.Environ(), crashVariable+"="+name, "GOTRACEBACK=all")
		text, err := crash.CombinedOutput()
		if err == nil || !strings.Contains(string(text), "goroutine 1 [running]") {
			t.Errorf("%s: no crash, %v:\n%s", name, err, text)
		}
		if got := FindIn(text); (len(got) > 0) != leaks {
			t.Errorf("%s: found %v in\n%s", name, got, text)
		}
	}
}
