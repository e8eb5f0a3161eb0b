package taint

import (
	"encoding/json"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestRemoval(t *testing.T) {
	taints := []corev1.Taint{
		{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoSchedule},
		{Key: testKey, Value: "true", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoExecute},
		{Key: testKey, Effect: corev1.TaintEffectNoExecute},
	}
	execute := []operation{
		{Op: "test", Path: "/spec/taints/3/key", Value: testKey},
		{Op: "test", Path: "/spec/taints/3/effect", Value: "NoExecute"},
		{Op: "remove", Path: "/spec/taints/3"},
	}
	schedule := []operation{
		{Op: "test", Path: "/spec/taints/1/key", Value: testKey},
		{Op: "test", Path: "/spec/taints/1/effect", Value: "NoSchedule"},
		{Op: "test", Path: "/spec/taints/1/value", Value: "true"},
		{Op: "remove", Path: "/spec/taints/1"},
	}
	for text, want := range map[string][]operation{
		// The last first: else the first removal would move the other.
		testKey:                          append(append([]operation{}, execute...), schedule...),
		testKey + ":NoExecute":           execute,
		testKey + "=true:NoSchedule":     schedule,
		testKey + ":PreferNoSchedule":    nil,
		"node.kubernetes.io/unreachable": nil,
	} {
		patch, err := parse(t, text).removal(taints)
		if err != nil {
			t.Fatal(err)
		}
		var got []operation
		if patch != nil {
			if err := json.Unmarshal(patch, &got); err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %s\nwant %v", text, patch, want)
		}
	}
}
