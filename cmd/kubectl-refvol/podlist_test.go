package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/fleet"
)

// TestPodList: the pods are listed for a quarter of the time, and at once if an answer depends on it.
func TestPodList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails error
		lists := 0
		l := &podList{list: func(context.Context) ([]fleet.Pod, error) {
			lists++
			<-time.After(time.Second)
			return []fleet.Pod{{Name: "a"}}, fails
		}}
		get := func(want int) {
			t.Helper()
			pods, err := l.get(t.Context())
			if err != nil || len(pods) != 1 || pods[0].Name != "a" || lists != want {
				t.Errorf("%v, %v after %d lists, want %d", pods, err, lists, want)
			}
			pods[0].Name = "changed"
		}
		get(1)
		if l.renew() {
			t.Error("the first list is one that was kept")
		}
		get(2)
		<-time.After(2 * time.Second)
		get(2)
		if !l.renew() {
			t.Error("a list that was kept is a new one")
		}
		get(3)
		<-time.After(3 * time.Second)
		get(4)
		<-time.After(3 * time.Second)
		fails = errors.New("fault")
		if _, err := l.get(t.Context()); !errors.Is(err, fails) {
			t.Error(err)
		}
		fails = nil
		get(6)
		l.forget("", "a")
		if pods, err := l.get(t.Context()); err != nil || len(pods) > 0 {
			t.Errorf("a pod that has ended: %v, %v", pods, err)
		}
	})
}
