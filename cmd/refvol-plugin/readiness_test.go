package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/pkg/mount"
)

func TestReadiness(t *testing.T) {
	private := fmt.Errorf("check at /pods: %w: set mountPropagation: Bidirectional", mount.ErrNotShared)
	unknown := errors.New("no such table")
	gateOff := errors.New("a feature gate is off")
	for name, tc := range map[string]struct {
		propagation error
		identity    error
		registered  bool
		want        error
		log         string
	}{
		"ready":                      {nil, nil, true, nil, ""},
		"not registered":             {nil, nil, false, errNotRegistered, ""},
		"not shared":                 {private, nil, true, private, "Not ready: pods would get empty directories"},
		"not shared, not registered": {private, nil, false, private, "set mountPropagation: Bidirectional"},
		"unknown":                    {unknown, nil, true, nil, "Can't tell whether volumes reach the node"},
		"refused":                    {nil, gateOff, true, gateOff, ""},
		"refused, not registered":    {nil, gateOff, false, gateOff, ""},
		"not shared, refused":        {private, gateOff, true, private, "set mountPropagation: Bidirectional"},
		"unknown, not registered":    {unknown, nil, false, errNotRegistered, "no such table"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
			ready := readiness(ctx, tc.propagation, func() error { return tc.identity }, func() bool { return tc.registered })
			for range 2 { // it is logged once
				if err := ready(); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
			}
			if lines := strings.Count(log.String(), "\n"); !strings.Contains(log.String(), tc.log) || (lines > 0) != (tc.log != "") || lines > 1 {
				t.Errorf("logged %q, want %q once", &log, tc.log)
			}
		})
	}
}
