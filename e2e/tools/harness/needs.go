package harness

import (
	"os"
	"os/exec"
	"slices"
	"strings"
)

// WithoutVariable names the programs, separated by commas, whose tests are skipped if the programs are missing.
const WithoutVariable = "REFVOL_WITHOUT"

// Needs returns the path of a program of this machine. If the program is missing, the test fails and names its Debian package, or is skipped if
// WithoutVariable names the program.
func Needs(t interface {
	TB
	Skipf(format string, args ...any)
}, program, debian string,
) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err == nil {
		return path
	}
	if slices.Contains(strings.Split(os.Getenv(WithoutVariable), ","), program) {
		t.Skipf("SKIPPED: this machine has no %s (%s names it)", program, WithoutVariable)
	}
	t.Fatalf("this machine has no %s: apt-get install --no-install-recommends %s, or set %s=%s to skip its tests", program, debian, WithoutVariable, program)
	return ""
}
