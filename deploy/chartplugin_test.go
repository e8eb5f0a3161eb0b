package deploy

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
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
	const wontStart = "the plugin would not start"
	for _, test := range []struct {
		set  []pluginValue
		says string
	}{
		{[]pluginValue{{"maxVolumeSize", "1Gi"}}, wontStart},
		{[]pluginValue{{"maxTotalSize", "16Mi"}}, wontStart},
		{[]pluginValue{{"maxVolumeSize", "1Gi"}, {"maxTotalSize", "1000M"}}, wontStart},
		{[]pluginValue{{"maxVolumeSize", "0"}}, wontStart},
		{[]pluginValue{{"maxCachedSize", "0.0Mi"}}, wontStart},
		{[]pluginValue{{"defaultSpread", "2h"}}, wontStart},
		{[]pluginValue{{"defaultSpread", "500ms"}}, wontStart},
		{[]pluginValue{{"defaultSpread", "1h0.000001ms"}}, wontStart},
		{[]pluginValue{{"resyncInterval", "0s"}}, wontStart},
		{[]pluginValue{{"publishWait", "9999999h"}}, wontStart},
		{[]pluginValue{{"crossNamespace", true}}, wontStart},
		{nil, ""},
		{[]pluginValue{{"maxVolumeSize", "1Gi"}, {"maxTotalSize", "1Gi"}}, ""},
		{[]pluginValue{{"maxVolumeSize", "1.000000001Ki"}, {"maxTotalSize", "1025"}}, ""},
		{[]pluginValue{{"maxVolumeSize", "0.5Gi"}}, ""},
		{[]pluginValue{{"maxVolumeSize", "524288k"}}, ""},
		{[]pluginValue{{"defaultSpread", "0s"}}, ""},
		{[]pluginValue{{"defaultSpread", "0.999s1ms"}}, ""},
		{[]pluginValue{{"defaultSpread", "59m60s"}}, ""},
		{[]pluginValue{{"publishWait", "0"}, {"resyncInterval", "1ms"}}, ""},
		{[]pluginValue{{"crossNamespace", true}, {"identity", "pod"}}, ""},
		{[]pluginValue{{"changeDetection", "Get"}, {"logFormat", "json"}, {"logLevel", 10}}, ""},
	} {
		t.Run(fmt.Sprint(test.set), func(t *testing.T) {
			if refused := comparePlugin(t, program, test.set); (refused == "") != (test.says == "") || !strings.Contains(refused, test.says) {
				t.Errorf("the chart says %q, want %q", refused, test.says)
			}
		})
	}
}

// pluginValue is a value of the chart that becomes a flag.
type pluginValue struct {
	name  string
	value any
}

// flag returns the flag of a value.
func (v pluginValue) flag() string {
	name := map[string]string{
		"identity": "identity", "crossNamespace": "cross-namespace", "changeDetection": "change-detection", "logFormat": "logging-format",
		"logLevel": "v", "resyncInterval": "resync-interval", "defaultSpread": "default-spread", "publishWait": "publish-wait",
		"maxVolumeSize": "max-volume-size", "maxTotalSize": "max-total-size", "maxCachedSize": "max-cached-size",
	}[v.name]
	return fmt.Sprintf("--%s=%v", name, v.value)
}

// comparePlugin renders the chart with values, and gives them to the plugin. It returns why the chart refuses them, or nothing.
func comparePlugin(t *testing.T, program string, set []pluginValue) string {
	t.Helper()
	loaded, err := load()
	if err != nil {
		t.Fatal(err)
	}
	overrides, flags := values{}, []string{"serve", "--node-name=node-1", "--identity=node"} // the chart's default
	for _, v := range set {
		overrides[v.name] = v.value
		flags = append(flags, v.flag())
	}
	manifests, _, err := renderLoaded(loaded, newest, overrides)
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
	for _, v := range set {
		// The plugin prints durations in its own form.
		if text, ok := v.value.(string); ok {
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
