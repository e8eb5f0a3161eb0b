package taint

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testKey = "csi.example.org/agent-not-ready"

// parse reads a taint that is known to be right.
func parse(t *testing.T, text string) Taint {
	t.Helper()
	parsed, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestParse(t *testing.T) {
	schedule := corev1.Taint{Key: testKey, Effect: corev1.TaintEffectNoSchedule}
	prefer := corev1.Taint{Key: testKey, Effect: corev1.TaintEffectPreferNoSchedule}
	execute := corev1.Taint{Key: testKey, Effect: corev1.TaintEffectNoExecute}
	valued := corev1.Taint{Key: testKey, Value: "true", Effect: corev1.TaintEffectNoExecute}
	other := corev1.Taint{Key: testKey + "-yet", Effect: corev1.TaintEffectNoExecute}
	all := []corev1.Taint{schedule, prefer, execute, valued, other}
	for text, want := range map[string][]corev1.Taint{
		testKey:                       {schedule, prefer, execute, valued},
		testKey + ":NoSchedule":       {schedule},
		testKey + ":PreferNoSchedule": {prefer},
		testKey + ":NoExecute":        {execute, valued},
		testKey + "=true:NoExecute":   {valued},
		testKey + "=:NoExecute":       {execute},
		testKey + "=true:NoSchedule":  nil,
		"agent-not-ready":             nil,
	} {
		parsed := parse(t, text)
		if got := parsed.String(); got != text {
			t.Errorf("%s is written %s", text, got)
		}
		var got []corev1.Taint
		for _, taint := range all {
			if parsed.matches(taint) {
				got = append(got, taint)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s stands for %v, want %v", text, got, want)
			continue
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s stands for %v, want %v", text, got, want)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                      "key: name part must be non-empty",
		":NoSchedule":           "key: name part must be non-empty",
		"=x:NoSchedule":         "key: name part must be non-empty",
		"a b":                   "key: name part must consist of alphanumeric characters",
		"a/b/c":                 "key: a valid label key must consist of alphanumeric characters",
		"Up.example.org/x":      "key: prefix part",
		testKey + "-":           "key: name part must consist of alphanumeric characters",
		testKey + "=true":       "a value needs an effect: key=value:Effect",
		testKey + "=a=b:x":      "value: a valid label must be",
		testKey + ":":           "effect: must be NoSchedule, PreferNoSchedule or NoExecute",
		testKey + ":noexecute":  "effect: must be NoSchedule, PreferNoSchedule or NoExecute",
		testKey + ":NoExecute-": "effect: must be NoSchedule, PreferNoSchedule or NoExecute",
		testKey + ":NoExecute:": "effect: must be NoSchedule, PreferNoSchedule or NoExecute",
		testKey + ":NoExecute ": "effect: must be NoSchedule, PreferNoSchedule or NoExecute",
		testKey + ":x,y:z":      "effect: must be NoSchedule, PreferNoSchedule or NoExecute",
	} {
		_, err := Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "Invalid value: \""+text+"\": ") {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
