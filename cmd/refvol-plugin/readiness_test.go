package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/pkg/mount"
)

func TestReadiness(t *testing.T) {
	private := fmt.Errorf("check at /pods: %w: set mountPropagation: Bidirectional", mount.ErrNotShared)
	unknown := errors.New("no such table")
	gateOff := errors.New("a feature gate is off")
	const (
		mounted, rights, registered = "[+]shared-mounts ok\n", "[+]rights ok\n", "[+]registration ok"
		notMounted                  = "[-]shared-mounts: check at /pods: mounts of this process don't reach the node: set mountPropagation: Bidirectional\n"
		noRights                    = "[-]rights: a feature gate is off\n"
		unregistered                = "[-]registration: the kubelet has not registered the driver yet"
	)
	for name, tc := range map[string]struct {
		propagation error
		identity    error
		registered  bool
		want        string
		log         string
	}{
		"ready":                      {nil, nil, true, mounted + rights + registered, ""},
		"not registered":             {nil, nil, false, mounted + rights + unregistered, ""},
		"not shared":                 {private, nil, true, notMounted + rights + registered, "Not ready: pods would get empty directories"},
		"not shared, not registered": {private, nil, false, notMounted + rights + unregistered, "set mountPropagation: Bidirectional"},
		"unknown":                    {unknown, nil, true, mounted + rights + registered, "Can't tell whether volumes reach the node"},
		"refused":                    {nil, gateOff, true, mounted + noRights + registered, ""},
		"refused, not registered":    {nil, gateOff, false, mounted + noRights + unregistered, ""},
		"not shared, refused":        {private, gateOff, true, notMounted + noRights + registered, "set mountPropagation: Bidirectional"},
		"unknown, not registered":    {unknown, nil, false, mounted + rights + unregistered, "no such table"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
			shared := sync.OnceValue(func() error { return notShared(ctx, tc.propagation) })
			ready := readiness(shared, func() error { return tc.identity }, func() bool { return tc.registered })
			for range 2 { // it is logged once
				if got, met := describe(ready); got != tc.want || met == strings.Contains(got, "[-]") {
					t.Errorf("got %t, %q, want %q", met, got, tc.want)
				}
			}
			if lines := strings.Count(log.String(), "\n"); !strings.Contains(log.String(), tc.log) || (lines > 0) != (tc.log != "") || lines > 1 {
				t.Errorf("logged %q, want %q once", &log, tc.log)
			}
		})
	}
}
