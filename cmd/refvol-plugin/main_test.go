package main

import (
	"bytes"
	"os"
	"regexp"
	"testing"

	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/sandbox"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

// runCommand executes a command line that ends by itself.
func runCommand(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	defer func() {
		if err := logsapi.ResetForTest(nil); err != nil { // logging is set up once per process
			t.Error(err)
		}
		klog.StopFlushDaemon()
	}()
	var out, errOut bytes.Buffer
	err = run(t.Context(), args, &out, &errOut)
	return out.String(), errOut.String(), err
}

func TestVersion(t *testing.T) {
	out, errOut, err := runCommand(t, "version")
	if err != nil || errOut != "" {
		t.Fatalf("%v, %q", err, errOut)
	}
	if !regexp.MustCompile(`^refvol-plugin v\S+ \(go1\.\S+, linux/\w+\)\n$`).MatchString(out) {
		t.Errorf("got %q", out)
	}
}

// Only main prints the error and exits, so nothing here may end the test.
func TestACommandLineThatIsWrong(t *testing.T) {
	t.Setenv("NODE_NAME", "node-1")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"no-such-command"}, `unknown command "no-such-command" for "refvol-plugin"`},
		{[]string{"--no-such-flag"}, "unknown flag: --no-such-flag"},
		{[]string{"serve", "--no-such-flag"}, "unknown flag: --no-such-flag"},
		{[]string{"serve", "argument"}, `unknown command "argument" for "refvol-plugin serve"`},
		{[]string{"version", "argument"}, `unknown command "argument" for "refvol-plugin version"`},
		{[]string{"serve", "--resync-interval=soon"}, `invalid argument "soon" for "--resync-interval" flag: time: invalid duration "soon"`},
		{[]string{"status", "--status-address="}, "--status-address: Required value: name the address that the plugin serves at"},
		{[]string{"status", "-o", "xml"}, `--output: Unsupported value: "xml": must be wide, json or yaml`},
		{[]string{"serve", "--logging-format=xml"}, `logging flags: format: Invalid value: "xml": Unsupported log format`},
	} {
		out, errOut, err := runCommand(t, test.args...)
		if err == nil || err.Error() != test.want {
			t.Errorf("%q: got %v, want %s", test.args, err, test.want)
		}
		if out+errOut != "" {
			t.Errorf("%q printed %q", test.args, out+errOut)
		}
	}
}
