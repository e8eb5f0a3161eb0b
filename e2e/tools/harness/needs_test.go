package harness

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// outcome records how a test ends.
type outcome struct{ fatal, skip string }

func (o *outcome) Helper() {}

func (o *outcome) Fatalf(format string, args ...any) {
	o.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (o *outcome) Skipf(format string, args ...any) {
	o.skip = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestNeeds: a missing program fails the test, unless the variable names exactly this program.
func TestNeeds(t *testing.T) {
	for name, test := range map[string]struct{ program, without, path, fatal, skip string }{
		"there":             {"sh", "sh", "/sh", "", ""},
		"missing":           {"refvol-gone", "", "", "no refvol-gone: apt-get install --no-install-recommends gone-light, or set REFVOL_WITHOUT=refvol-gone", ""},
		"another one named": {"refvol-gone", "nginx,refvol-gone-2", "", "no refvol-gone", ""},
		"named":             {"refvol-gone", "nginx,refvol-gone", "", "", "SKIPPED: this machine has no refvol-gone (REFVOL_WITHOUT names it)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(WithoutVariable, test.without)
			got, path, done := &outcome{}, "", make(chan struct{})
			go func() {
				defer close(done)
				path = Needs(got, test.program, "gone-light")
			}()
			<-done
			if !strings.HasSuffix(path, test.path) || !isLike(got.fatal, test.fatal) || !isLike(got.skip, test.skip) {
				t.Errorf("got %q, %+v", path, got)
			}
		})
	}
}

// isLike reports whether got contains want, or both are empty.
func isLike(got, want string) bool { return strings.Contains(got, want) && (got == "") == (want == "") }
