package suite

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// watchCase is something that happens to two volumes of one ConfigMap, the kubelet's and refvol's, and the events that watches of each
// get: of its file a, of the directory ..data, and of the volume's own directory.
type watchCase struct {
	happens         func(*pod)
	native, refvols []string
}

// watchCases are the cases of docs/updates.md#what-a-watcher-sees that happen to both. The suite integration has a withdrawal, too.
func watchCases() map[string]watchCase {
	both := []string{
		". CREATE ..TIME", ". ATTRIB ..TIME", ". CREATE ..data_tmp", ". MOVED_FROM ..data_tmp", ". MOVED_TO ..data", ". DELETE ..TIME",
		"..data DELETE a", "..data DELETE b", "..data DELETE_SELF", "a ATTRIB",
	}
	// The kubelet writes all files anew. refvol links those that stay, which makes a second ATTRIB.
	native := append(slices.Clone(both), "a DELETE_SELF")
	refvols := append(slices.Clone(both), ". MOVED_FROM ..TIME", ". MOVED_TO ..TIME")
	return map[string]watchCase{
		"open": {
			happens: func(p *pod) {
				for _, volume := range []string{"native", "live"} {
					p.probe("read", mountDir+volume+"/a")
				}
			},
			refvols: []string{"a ATTRIB", "..data ATTRIB a"},
		},
		"this": {
			happens: func(p *pod) { p.updateConfigMap("this", object{"a": "2", "b": "1"}) },
			native:  native, refvols: append(slices.Clone(refvols), "a DELETE_SELF"),
		},
		"other": {
			happens: func(p *pod) { p.updateConfigMap("other", object{"a": "1", "b": "2"}) },
			native:  native, refvols: append(slices.Clone(refvols), "a ATTRIB"),
		},
	}
}

// TestWatchers measures docs/updates.md#what-a-watcher-sees for the kubelet's volumes and for refvol's. The container of each pod watches
// both volumes, and does not open their files.
func TestWatchers(t *testing.T) {
	t.Parallel()
	n, cases, pods := newNamespace(t), watchCases(), map[string]*pod{}
	for name := range cases {
		n.createConfigMap(name, object{"a": "1", "b": "1"})
		spec := newPod(name, native("native", name), refvol("live", attributes{"configMap": name}))
		spec.Spec.Containers[0].Args = []string{"events", "a,..data,.", mountDir + "native", mountDir + "live"}
		pods[name] = n.create(spec)
	}
	for _, p := range pods {
		p.awaitReady()
		p.awaitEvents("ready", nil, nil)
	}
	for name, c := range cases {
		c.happens(pods[name])
	}
	// Twice, so that events that come late to a pod are seen, too: those of the others come meanwhile.
	for range 2 {
		for _, name := range slices.Sorted(maps.Keys(cases)) {
			pods[name].awaitEvents(name, cases[name].native, cases[name].refvols)
		}
	}
}

// awaitEvents waits until the log of the pod's container has these events of its volumes, in any order, and no others.
func (p *pod) awaitEvents(when string, native, refvols []string) {
	p.t.Helper()
	want := map[string][]string{"native": native, "live": refvols}
	eventually(p.t, nativeTimeout+time.Minute, "events of "+when, func(ctx context.Context) error {
		log, err := p.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err != nil {
			return err
		}
		text, isReady := strings.CutPrefix(string(log), "ready\n")
		if !isReady {
			return fmt.Errorf("the watch has not begun: %q", log)
		}
		got := map[string][]string{}
		for line := range strings.Lines(text) {
			volume, event, _ := strings.Cut(strings.TrimSpace(line), ": ")
			got[volume] = append(got[volume], event)
		}
		for volume, events := range want {
			if !slices.Equal(slices.Sorted(slices.Values(got[volume])), slices.Sorted(slices.Values(events))) {
				return fmt.Errorf("of %s the watches saw\n%s\nwant\n%s", volume, strings.Join(got[volume], "\n"), strings.Join(events, "\n"))
			}
		}
		return nil
	})
}
