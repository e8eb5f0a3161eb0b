package check

import (
	"strings"
	"testing"
)

// TestRestartRules: a sidecar whose exit restarts only itself is a problem.
func TestRestartRules(t *testing.T) {
	const (
		own   = `[{name: w, image: "ghcr.io/refvol/refvol-notify:v1", args: [--exit-code=42]`
		field = "spec.containers[0].restartPolicyRules: Required value: action RestartAllContainers for exit code 42: otherwise only w restarts after a change"
	)
	rule := func(text string) string { return own + ", restartPolicyRules: [" + text + "]}]" }
	for containers, want := range map[string]string{
		own + "}]": field,
		`[{name: w, image: "reg:5000/refvol-notify@sha256:0", args: [--exit-code, "42"]}]`: field,
		`[{name: w, image: x, command: [/bin/refvol-notify, -exit-code, "42"]}]`:           field,
		`[{name: w, image: refvol-notify, command: [/other], args: [--exit-code=42]}]`:     "",
		`[{name: w, image: refvol-notify, args: [--signal=HUP, --process=nginx]}]`:         "",
		`[{name: w, image: refvol-notify-more, args: [--exit-code=42]}]`:                   "",
		`[{name: w, image: refvol-notify, args: [--exit-code]}]`:                           "",
		rule("{action: RestartAllContainers, exitCodes: {operator: In, values: [1, 42]}}"): "",
		rule("{action: RestartAllContainers, exitCodes: {operator: NotIn, values: [1]}}"):  "",
		rule("{action: RestartAllContainers, exitCodes: {operator: In, values: [41]}}"):    field,
		rule("{action: RestartAllContainers, exitCodes: {operator: NotIn, values: [42]}}"): field,
		rule("{action: Restart, exitCodes: {operator: In, values: [42]}}"):                 field,
		rule("{action: RestartAllContainers}"):                                             field,
	} {
		problems, _ := checked(t, nil, false, podWith("{secret: s, updatePolicy: Pinned}", containers))
		if got := strings.Join(problems, "\n"); got != want {
			t.Errorf("%s:\n got %q\nwant %q", containers, got, want)
		}
	}
}
