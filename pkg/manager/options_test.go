package manager

import (
	"strings"
	"testing"
	"time"
)

func TestNewRefusesBadOptions(t *testing.T) {
	api := newAPIServer(t)
	client, paced := api.client(), api.paced
	for _, tc := range []struct {
		name, want string
		opts       Options
	}{
		{"no client", "Client and Requests are required", Options{Requests: paced, ResyncInterval: time.Minute}},
		{"no requests", "Client and Requests are required", Options{Client: client, ResyncInterval: time.Minute}},
		{"no resync interval", "must be more than zero, not 0s", Options{Client: client, Requests: paced}},
		{"no such change detection", `ChangeDetection "watch" is none of Watch, Cache and Get`, Options{Client: client, Requests: paced, ResyncInterval: time.Minute, ChangeDetection: "watch"}},
		{"no node for its TTL", "Nodes and NodeName are required", Options{Client: client, Requests: paced, ResyncInterval: time.Minute, ChangeDetection: Cache}},
		{"negative resync interval", "must be more than zero, not -1s", Options{Client: client, Requests: paced, ResyncInterval: -time.Second}},
	} {
		if _, err := New(tc.opts); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want it to contain %q", tc.name, err, tc.want)
		}
	}
}
