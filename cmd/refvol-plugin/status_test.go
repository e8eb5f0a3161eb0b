package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/command"
	"github.com/refvol/refvol/pkg/status"
)

// serveStatus returns the address of a plugin that has volumes in the conditions.
func serveStatus(t *testing.T, apiVersion string, abnormal ...bool) string {
	t.Helper()
	report := &status.Report{APIVersion: apiVersion, Kind: status.Kind, Node: "node-1", ObservedAt: time.Now()}
	for i, abnormal := range abnormal {
		report.Volumes = append(report.Volumes, status.Volume{
			Name: fmt.Sprint("v", i), Condition: "RefDeleted", Reason: "gone\x1b[2J", Unhealthy: abnormal, Since: report.ObservedAt.Add(-time.Hour),
		})
	}
	server := httptest.NewServer(status.Handler(func() *status.Report { return report }))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// TestStatus: what is printed goes to stdout, whatever the exit status, and no error stands in between.
func TestStatus(t *testing.T) {
	normal, abnormal := serveStatus(t, status.APIVersion, false), serveStatus(t, status.APIVersion, false, true)
	lacking := httptest.NewServer(status.Handler(func() *status.Report {
		return &status.Report{APIVersion: status.APIVersion, Kind: status.Kind, Node: "node-1", MissingRights: []string{"get of pods", "\x1b[2J"}}
	}))
	defer lacking.Close()
	refusing := httptest.NewServer(status.Handler(func() *status.Report {
		return &status.Report{APIVersion: status.APIVersion, Kind: status.Kind, Node: "node-1", ObservedAt: time.Now(), Refused: []status.Refusal{{
			Name: "settings", Pod: status.Pod{Namespace: "shop", Name: "web"}, Code: "InvalidArgument", Message: "updatePolicy\x1b[2J: no", At: time.Now().Add(-time.Hour),
		}}}
	}))
	defer refusing.Close()
	newer, none := serveStatus(t, "status.refvol.dev/v9"), serveStatus(t, status.APIVersion)
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := gone.Addr().String()
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args []string
		out  []string
		exit int
		err  string
	}{
		"normal":     {[]string{"--status-address=" + normal}, []string{"NORMAL", "yes", "v0", "RefDeleted", "60m", `gone\u001b[2J`}, 0, ""},
		"no volumes": {[]string{"--status-address=" + none}, []string{"No volumes."}, 0, ""},
		"abnormal":   {[]string{"--status-address=" + abnormal}, []string{"no      -    v1", "yes     -    v0"}, 1, "status: volumes that are abnormal: 1 of 2"},
		"lacks rights": {
			[]string{"--status-address=" + lacking.Listener.Addr().String()},
			[]string{"The plugin on node-1 lacks rights: get of pods, \\u001b[2J\n", "No volumes."},
			1, "status: rights that the plugin lacks: 2",
		},
		"refuses": {
			[]string{"--status-address=" + refusing.Listener.Addr().String()},
			[]string{"Publish failed 59m ago on node-1: volume settings of pod shop/web: InvalidArgument: updatePolicy\\u001b[2J: no\n", "No volumes."},
			1, "status: publishes that failed in the last ten minutes: 1",
		},
		"wide":         {[]string{"--status-address=" + abnormal, "-o", "wide"}, []string{"VOLUME-ID"}, 1, "1 of 2"},
		"json":         {[]string{"--status-address=" + abnormal, "-ojson"}, []string{`"apiVersion": "status.refvol.dev/v1alpha1"`, `gone\u001b[2J`}, 1, "1 of 2"},
		"yaml":         {[]string{"--status-address=" + abnormal, "--output=yaml"}, []string{"apiVersion: status.refvol.dev/v1alpha1\n", "node: node-1\n"}, 1, "1 of 2"},
		"newer":        {[]string{"--status-address=" + newer}, nil, 2, `apiVersion: Invalid value: "status.refvol.dev/v9"`},
		"other server": {[]string{"--status-address=" + other.Listener.Addr().String()}, nil, 2, "HTTP status 404"},
		"no plugin": {
			[]string{"--status-address=" + nobody},
			nil, 2,
			"connection refused: run this in the pod of a plugin whose --status-address is " + nobody + "; the log of the plugin says where it serves",
		},
		"no address":    {[]string{"--status-address="}, nil, 2, "--status-address: Required value: name the address that the plugin serves at"},
		"other address": {[]string{"--status-address=10.0.0.1:9811"}, nil, 2, "must be a loopback address"},
		"other output":  {[]string{"-o", "xml"}, nil, 2, `--output: Unsupported value: "xml": must be table, wide, json or yaml`},
		"unknown flag":  {[]string{"--no-such-flag"}, nil, 2, "unknown flag: --no-such-flag"},
		"argument":      {[]string{"volume"}, nil, 2, `unknown command "volume" for "refvol-plugin status"`},
	} {
		out, errOut, err := runCommand(t, append([]string{"status"}, test.args...)...)
		if command.ExitStatus(err) != test.exit || (test.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.err) || errOut != "" {
			t.Errorf("%s: exit status %d, %v, %q, want %d, %s", name, command.ExitStatus(err), err, errOut, test.exit, test.err)
		}
		if len(test.out) == 0 && out != "" || strings.Contains(out, "\x1b") {
			t.Errorf("%s printed %q", name, out)
		}
		for _, want := range test.out {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", name, want, out)
			}
		}
	}
}
