package deploy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/refvol/refvol/internal/dice"
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
	for _, set := range [][]pluginValue{
		{{"maxVolumeSize", "1Gi"}},
		{{"maxTotalSize", "16Mi"}},
		{{"maxVolumeSize", "1Gi"}, {"maxTotalSize", "1000M"}},
		{{"maxVolumeSize", "0"}},
		{{"maxCachedSize", "0.0Mi"}},
		{{"defaultSpread", "2h"}},
		{{"defaultSpread", "500ms"}},
		{{"defaultSpread", "1h0.000001ms"}},
		{{"resyncInterval", "0s"}},
		{{"publishWait", "9999999h"}},
		{{"crossNamespace", true}},
	} {
		t.Run(fmt.Sprint(set), func(t *testing.T) {
			if refused := comparePlugin(t, program, set); !strings.Contains(refused, "the plugin would not start") {
				t.Errorf("the chart says %q", refused)
			}
		})
	}
	for _, set := range [][]pluginValue{
		nil,
		{{"maxVolumeSize", "1Gi"}, {"maxTotalSize", "1Gi"}},
		{{"maxVolumeSize", "1.000000001Ki"}, {"maxTotalSize", "1025"}},
		{{"maxVolumeSize", "0.5Gi"}},
		{{"maxVolumeSize", "524288k"}},
		{{"defaultSpread", "0s"}},
		{{"defaultSpread", "0.999s1ms"}},
		{{"defaultSpread", "59m60s"}},
		{{"publishWait", "0"}, {"resyncInterval", "1ms"}},
		{{"crossNamespace", true}, {"identity", "pod"}},
	} {
		t.Run(fmt.Sprint(set), func(t *testing.T) {
			if refused := comparePlugin(t, program, set); refused != "" {
				t.Errorf("the chart refuses it: %s", refused)
			}
		})
	}
	dice.Each(t, 150, func(t *testing.T, random *rand.Rand) {
		comparePlugin(t, program, randomPluginValues(random))
	})
}

type pluginValue struct {
	name  string
	value any
}

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
	overrides, flags := values{}, []string{"serve", "--node-name=node-1", "--identity=node"} // the chart's default
	for _, v := range set {
		overrides[v.name] = v.value
		flags = append(flags, v.flag())
	}
	manifests, _, err := renderChart(newest, overrides)
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

// randomPluginValues returns some values that become flags. Most of them are usual, so that the plugin accepts many sets.
func randomPluginValues(random *rand.Rand) []pluginValue {
	pick := func(usual, odd []string) string {
		if random.IntN(24) > 0 || odd == nil {
			return usual[random.IntN(len(usual))]
		}
		return odd[random.IntN(len(odd))]
	}
	size := func() string {
		return pick([]string{""}, []string{"+", "-", " "}) +
			pick([]string{"1", "8", "16", "32", "100", "512", "1024", "0.5", "1.5"}, []string{"0", "0.0", "00", "007", ".5", "1.", "0.0000000001", "12345678901234567890", "", "big"}) +
			pick([]string{"k", "M", "G", "Ki", "Mi", "Mi", "Gi", "T", "Ti", ""}, []string{"P", "E", "Pi", "Ei", "m", "u", "n", "e3", "E3", "e+3", "e-3", "K", "MB", "mi", " "})
	}
	duration := func() string {
		text := pick([]string{""}, []string{"-", "+"})
		for range 1 + random.IntN(2) {
			text += pick([]string{"1", "2", "5", "30", "59.5", "500", "1000", "0"}, []string{"0.0000000001", "999999999999", ".5", "1.", "", "soon"}) +
				pick([]string{"ms", "s", "s", "m", "h"}, []string{"us", "µs", "ns", "d", ""})
		}
		return text
	}
	all := []pluginValue{
		{"identity", pick([]string{"node", "pod", "plugin"}, []string{"Pod", ""})},
		{"crossNamespace", random.IntN(4) == 0},
		{"changeDetection", pick([]string{"Watch", "Cache", "Get"}, []string{"watch", ""})},
		{"logFormat", pick([]string{"text", "json"}, []string{"xml"})},
		{"logLevel", random.IntN(11)},
		{"resyncInterval", duration()},
		{"defaultSpread", duration()},
		{"publishWait", duration()},
		{"maxVolumeSize", size()},
		{"maxTotalSize", size()},
		{"maxCachedSize", size()},
	}
	return slices.DeleteFunc(all, func(pluginValue) bool { return random.IntN(3) > 0 })
}
