package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// TestRolloutStatus: pods that show the version, pods that don't, and those that are not ready, since the first of them.
func TestRolloutStatus(t *testing.T) {
	pod := func(name string, ready corev1.ConditionStatus, ago time.Duration) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.NewTime(time.Now().Add(-ago))},
		}}}
	}
	pods := map[string]*corev1.Pod{"a": pod("a", corev1.ConditionTrue, time.Hour), "b": pod("b", corev1.ConditionFalse, time.Minute), "c": pod("c", corev1.ConditionFalse, 5*time.Minute), "d": pod("d", corev1.ConditionFalse, time.Hour)}
	taker := func(uid string, current bool) fleet.Taker {
		return fleet.Taker{Pod: status.Pod{UID: uid}, Current: current}
	}
	item := rolloutItem{Object: fleet.Object{Kind: "Secret", Namespace: "shop", Name: "db"}, Canary: true, Share: "10%", NotReady: []string{}}
	item.count([]fleet.Taker{taker("a", true), taker("c", true), taker("b", true), taker("d", false), taker("gone", true)}, pods)
	if item.Takers != 4 || item.Others != 1 || strings.Join(item.NotReady, " ") != "b c" || time.Since(*item.NotReadySince).Round(time.Minute) != 5*time.Minute {
		t.Errorf("%+v", item)
	}
	var text bytes.Buffer
	if err := (&rolloutList{Items: []rolloutItem{item, {Object: fleet.Object{Kind: "ConfigMap", Namespace: "shop", Name: "app"}, Paused: true}}}).writeText(&text, "", true); err != nil {
		t.Fatal(err)
	}
	const want = `NAMESPACE  OBJECT         KIND          SHARE  PAUSED  TAKERS  OTHERS  NOT-READY  SINCE
shop       secret/db      canary        10%    no      4       1       2          5m
shop       configmap/app  held version  -      yes     0       0       0          -
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
	for namespace, want := range map[string]string{
		"":     "No object has the annotation refvol.dev/canary or refvol.dev/rollout.\n",
		"shop": "No object of namespace shop has the annotation refvol.dev/canary or refvol.dev/rollout. -A lists all namespaces.\n",
	} {
		text.Reset()
		if err := (&rolloutList{}).writeText(&text, namespace, true); err != nil || text.String() != want {
			t.Errorf("got %q, want %q: %v", text.String(), want, err)
		}
	}
}
