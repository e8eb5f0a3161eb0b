package manager

import (
	"strings"
	"testing"
	"time"
)

func TestNewRefusesBadOptions(t *testing.T) {
	client := newAPIServer(t).client()
	for _, tc := range []struct {
		name, want string
		opts       Options
	}{
		{"no client", "Client is required", Options{ResyncInterval: time.Minute}},
		{"no resync interval", "must be more than zero, not 0s", Options{Client: client}},
		{"no such change detection", `ChangeDetection "watch" is none of Watch, Cache and Get`, Options{Client: client, ResyncInterval: time.Minute, ChangeDetection: "watch"}},
		{"no node for its TTL", "Nodes and NodeName are required", Options{Client: client, ResyncInterval: time.Minute, ChangeDetection: Cache}},
		{"negative resync interval", "must be more than zero, not -1s", Options{Client: client, ResyncInterval: -time.Second}},
	} {
		if _, err := New(tc.opts); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want it to contain %q", tc.name, err, tc.want)
		}
	}
}

func TestWatchIsTheDefault(t *testing.T) {
	m, err := New(Options{Client: newAPIServer(t).client(), ResyncInterval: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := m.objects.store.(*watchStore); !ok {
		t.Errorf("the store is a %T", s)
	}
}
