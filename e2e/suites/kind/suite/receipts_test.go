package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// testReceipts has pods read their files, or not, in every way, and the command tell which of them have not opened which
// files since a change.
func testReceipts(t *testing.T) {
	s := newNamespace(t)
	node := s.workers(t)[0]
	s.setConfigMap("app", object{"a": "1", "b": "1"})
	const onlyA = "[{key: a, path: a}]"
	pods := map[string]*pod{}
	for name, a := range map[string]attributes{
		"once":    {"configMap": "app", "items": onlyA},
		"never":   {"configMap": "app", "items": onlyA},
		"half":    {"configMap": "app"},
		"subpath": {"configMap": "app", "items": onlyA, "writeStrategy": "InPlace"},
		"env":     {"sources": "[{env: {path: app.env, envFrom: [{configMapRef: {name: app}}]}}]"},
	} {
		spec := newPod(name, refvol("app", a))
		spec.Spec.NodeName = node
		if name == "subpath" {
			mountBelow(&spec.Spec.Containers[0], "app:/keys/app/a:a")
		}
		pods[name] = s.create(spec)
	}
	awaitReady(slices.Collect(maps.Values(pods))...)
	// Neither the kubelet nor the runtime opens what a container mounts.
	s.lag("at the start", map[string]string{
		"once": "NotOpened a", "never": "NotOpened a", "half": "NotOpened a, b", "subpath": "NotOpened a", "env": "NotOpened app.env",
	})
	for _, name := range []string{"once", "never", "half", "subpath"} {
		pods[name].probe("read", mountDir+"app/a")
	}
	pods["half"].probe("read", mountDir+"app/b")
	pods["env"].probe("read", mountDir+"app/app.env")
	s.lag("once all have opened all", map[string]string{})

	s.setConfigMap("app", object{"a": "2", "b": "2"})
	s.lag("after a change", map[string]string{
		"once": "NotOpened a", "never": "NotOpened a", "half": "NotOpened a, b", "subpath": "NotOpened a", "env": "NotOpened app.env",
	})
	pods["once"].probe("read", mountDir+"app/a")
	pods["half"].probe("read", mountDir+"app/a")
	pods["subpath"].probe("read", "/keys/app/a")
	pods["env"].probe("read", mountDir+"app/app.env")
	s.lag("once some have opened some", map[string]string{"never": "NotOpened a", "half": "NotOpened b"})
}

// unopened takes the paths out of a laggard's message.
var unopened = regexp.MustCompile(`nobody has opened (.*), shown since`)

// lag waits until the command lists just these pods and nodes, each with the reason and the paths of unopened files.
func (n *namespace) lag(when string, want map[string]string) {
	n.t.Helper()
	timeout := time.Second
	eventually(n.t, podTimeout, "the right laggards "+when, func(context.Context) error {
		stdout, stderr, status := kubectlRefvol(n.t, "converged", "configmap/app", "-n", n.name, "--opened", "--timeout="+timeout.String(),
			"--plugin-timeout=3s", "-o", "json")
		timeout = min(2*timeout, 16*time.Second) // a busy machine may need more
		var verdict struct {
			Laggards []struct {
				Node, Reason, Message string
				Pod                   *corev1.ObjectReference
			}
		}
		if err := json.Unmarshal([]byte(stdout), &verdict); err != nil {
			return fmt.Errorf("status %d: %w: %s", status, err, stderr)
		}
		got := map[string]string{}
		for _, l := range verdict.Laggards {
			name, text := l.Node, l.Reason
			if l.Pod != nil {
				name = l.Pod.Name
			}
			if paths := unopened.FindStringSubmatch(l.Message); paths != nil {
				text += " " + paths[1]
			}
			got[name] = text
		}
		if yes := status == 0; !maps.Equal(got, want) || yes != (len(want) == 0) {
			return fmt.Errorf("status %d, %v, want %v: %s", status, got, want, stdout)
		}
		return nil
	})
}
