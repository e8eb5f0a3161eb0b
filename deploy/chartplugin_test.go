package deploy

import (
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
)

// TestChartAgainstPlugin: the plugin starts with all that the chart renders. What the plugin refuses, the chart refuses with the
// plugin's sentence, or by its schema. Of the usual forms, the chart refuses nothing that the plugin accepts.
func TestChartAgainstPlugin(t *testing.T) {
	program := filepath.Join(t.TempDir(), "refvol-plugin")
	build := exec.CommandContext(t.Context(), "go", "-C", "..", "build", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace", "-o", program, "./cmd/refvol-plugin")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, set := range []values{
		{"maxVolumeSize": "1Gi"},
		{"maxTotalSize": "16Mi"},
		{"maxVolumeSize": "1Gi", "maxTotalSize": "1000M"},
		{"maxVolumeSize": "0"},
		{"maxCachedSize": "0.0Mi"},
		{"defaultSpread": "2h"},
		{"defaultSpread": "500ms"},
		{"defaultSpread": "1h0.000001ms"},
		{"resyncInterval": "0s"},
		{"publishWait": "9999999h"},
		{"crossNamespace": true},
	} {
		if refused := comparePlugin(t, program, set); !strings.Contains(refused, "the plugin would not start") {
			t.Errorf("%v: the chart says %q", set, refused)
		}
	}
	for _, set := range []values{
		{},
		{"maxVolumeSize": "1Gi", "maxTotalSize": "1Gi"},
		{"maxVolumeSize": "1.000000001Ki", "maxTotalSize": "1025"},
		{"maxVolumeSize": "0.5Gi"},
		{"maxVolumeSize": "524288k"},
		{"defaultSpread": "0s"},
		{"defaultSpread": "0.999s1ms"},
		{"defaultSpread": "59m60s"},
		{"publishWait": "0", "resyncInterval": "1ms"},
		{"crossNamespace": true, "identity": "pod"},
		{"identity": "plugin", "changeDetection": "Cache", "logFormat": "json", "logLevel": 10},
	} {
		if refused := comparePlugin(t, program, set); refused != "" {
			t.Errorf("the chart refuses %v: %s", set, refused)
		}
	}
	// What the schema allows is refused by both, or by none.
	for _, number := range []string{"1", "007", "0.5", "1024", "0.0"} {
		for _, unit := range []string{"", "k", "Mi", "T", "Ti"} {
			comparePlugin(t, program, values{"maxVolumeSize": number + unit})
			comparePlugin(t, program, values{"maxTotalSize": number + unit, "maxCachedSize": number + unit})
		}
	}
	for _, number := range []string{"0", "1", "59.5", "500"} {
		for _, unit := range []string{"ms", "s", "m", "h"} {
			comparePlugin(t, program, values{"defaultSpread": number + unit})
			comparePlugin(t, program, values{"resyncInterval": number + unit, "publishWait": number + unit + "30s"})
		}
	}
}

// comparePlugin renders the chart with values, and gives them to the plugin. It returns why the chart refuses them, or nothing.
func comparePlugin(t *testing.T, program string, set values) string {
	t.Helper()
	flags := []string{"serve", "--node-name=node-1", "--identity=node"} // the chart's default
	names := map[string]string{"logFormat": "logging-format", "logLevel": "v"}
	for name, value := range set {
		flag := strings.ToLower(regexp.MustCompile("[A-Z]").ReplaceAllString(name, "-$0"))
		flags = append(flags, fmt.Sprintf("--%s=%v", cmp.Or(names[name], flag), value))
	}
	manifests, _, err := renderChart(newest, set)
	if err == nil {
		args := pluginContainer(t, only[*appsv1.DaemonSet](t, decode(t, chart, manifests))).Args
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "$(NODE_NAME)", "node-1")
		}
		if refused := refusal(t, program, args); refused != "" {
			t.Errorf("%v: the chart renders %q, with which the plugin does not start: %s", set, args, refused)
		}
		return ""
	}
	if strings.Contains(err.Error(), "meet the specifications of the schema") {
		return err.Error()
	}
	refused := refusal(t, program, flags)
	for _, value := range set {
		// The plugin prints durations in its own form.
		if text, ok := value.(string); ok {
			if d, err := time.ParseDuration(text); err == nil {
				refused = strings.ReplaceAll(refused, "Invalid value: "+d.String()+":", "Invalid value: "+text+":")
			}
		}
	}
	if !slices.ContainsFunc(strings.Split(refused, "\n"), func(line string) bool { return line != "" && strings.Contains(err.Error(), line) }) {
		t.Errorf("%v: the chart says %q, the plugin %q", set, err, refused)
	}
	return err.Error()
}

// refusal returns why the plugin refuses a command line, or nothing. A valid one fails later here, without a kubeconfig.
func refusal(t *testing.T, program string, args []string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, append(args, "--kubeconfig=/nonexistent")...).CombinedOutput()
	failed, ok := errors.AsType[*exec.ExitError](err)
	switch text := string(out); {
	case ok && failed.ExitCode() == 1 && strings.Contains(text, "configure the client of the API server: "):
		return ""
	case ok && failed.ExitCode() == 2:
		return strings.TrimSpace(strings.TrimPrefix(text, "Error: "))
	default:
		t.Fatalf("%q: %v: %s", args, err, text)
		return ""
	}
}
