package main

import (
	"strings"
	"testing"
)

// Its list and its refusals are tested with an API server, in e2e/suites/manifests. The text about a wrong selector is apimachinery's.
func TestUninstallCheckFlags(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--driver-name="}, "--driver-name must not be empty"},
		{[]string{"--plugin-selector=a b"}, "--plugin-selector: "},
		{[]string{"--kubeconfig=/does/not/exist"}, "configure the client of the API server: stat /does/not/exist: no such file or directory"},
		{[]string{"argument"}, `unknown command "argument" for "kubectl refvol uninstall-check"`},
	} {
		if _, _, err := runCommand(t, append([]string{"uninstall-check"}, test.args...)...); !strings.HasPrefix(message(err), test.want) {
			t.Errorf("%q: %v, want %q", test.args, err, test.want)
		}
	}
}
