package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/volume"
)

// runningRollout is a rollout of the canary. What it prints has the time at which it came.
type runningRollout struct {
	*exec.Cmd

	mu    sync.Mutex
	text  strings.Builder
	times map[string]time.Time
}

// Write stores a line.
func (r *runningRollout) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times[string(line)] = time.Now()
	return r.text.Write(line)
}

// printedAt returns when the command printed a line with a text.
func (r *runningRollout) printedAt(text string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line, at := range r.times {
		if strings.Contains(line, text) {
			return at
		}
	}
	return time.Time{}
}

// startRollout starts a rollout of the canary.
func (c *canaried) startRollout(args ...string) *runningRollout {
	c.t.Helper()
	args = append([]string{"rollout", "configmap/settings-canary", "-n", c.name, "--steps=10%,50%,100%", "--every=20s"}, args...)
	r := &runningRollout{Cmd: refvolCommand(c.t, args...), times: map[string]time.Time{}}
	r.Stdout, r.Stderr = r, r
	if err := r.Start(); err != nil {
		c.t.Fatal(err)
	}
	return r
}

// end waits until a rollout ends, and fails the test if its exit status is another.
func (c *canaried) end(r *runningRollout, status int) {
	c.t.Helper()
	err := r.Wait()
	c.t.Logf("%v\n%s", err, r.text.String())
	if err := leak.Check("the output", r.text.String()); err != nil {
		c.t.Error(err)
	}
	if got := r.ProcessState.ExitCode(); got != status {
		c.t.Fatalf("status %d, want %d", got, status)
	}
}

// writeCanary changes the canary's text.
func (c *canaried) writeCanary(text string) {
	c.t.Helper()
	patch, err := json.Marshal(map[string]any{"data": object{"text": text}})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.client.CoreV1().ConfigMaps(c.name).Patch(c.t.Context(), "settings-canary", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// share returns the canary's annotation.
func (c *canaried) share(ctx context.Context) (string, error) {
	canary, err := c.client.CoreV1().ConfigMaps(c.name).Get(ctx, "settings-canary", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return canary.Annotations[volume.CanaryAnnotation], nil
}

// badPods returns how many pods have told of the bad text, and fails the test if one of them is above the share of the first step.
func (c *canaried) badPods(ctx context.Context) (bad int, err error) {
	pods, err := c.client.CoreV1().Pods(c.name).List(ctx, metav1.ListOptions{LabelSelector: "app=canaried"})
	if err != nil {
		return 0, err
	}
	var places []int
	for i := range pods.Items {
		places = append(places, volume.RolloutPlace(pods.Items[i].UID))
	}
	share := max(10, slices.Min(places)) // a step without a pod is raised
	for i := range pods.Items {
		texts, err := c.told(ctx, pods.Items[i].Name)
		if err != nil {
			return 0, err
		}
		if slices.Contains(texts, "bad") {
			bad++
			if places[i] > share {
				c.t.Errorf("place %d has told of %q, and the share was %d%%", places[i], texts, share)
			}
		}
	}
	return bad, nil
}

// TestRolloutOfACanary: a bad canary is taken back at once by a command that finds it at 10%, after an earlier one was killed there, and no pod
// above the share has seen it. A drain and a rolling update do not stop a good one.
func TestRolloutOfACanary(t *testing.T) {
	c := newCanaried(t, 0)
	c.awaitTold("no pod sees the canary", func(int) []string { return []string{"first"} })
	c.writeCanary("bad")
	first := c.startRollout("--allow-restarts=100", "--unready-for=1h") // it judges nobody
	eventually(t, podTimeout, "pods have told of the bad text", func(ctx context.Context) error {
		bad, err := c.badPods(ctx)
		if err == nil && bad == 0 {
			err = errors.New("no pod has")
		}
		return err
	})
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait() // killed
	if share, err := c.share(t.Context()); err != nil || share == "0%" || share == "50%" {
		t.Fatalf("the first command was killed at %q: %v\n%s", share, err, first.text.String())
	}

	taken := make(chan time.Time, 1)
	watching, err := c.client.CoreV1().ConfigMaps(c.name).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=settings-canary"})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for event := range watching.ResultChan() {
			if object, err := meta.Accessor(event.Object); err == nil && object.GetAnnotations()[volume.CanaryAnnotation] == "0%" {
				taken <- time.Now()
				return
			}
		}
	}()
	second := c.startRollout("--timeout=1m")
	c.end(second, 1)
	defer watching.Stop()
	select {
	case at := <-taken:
		if verdict := second.printedAt("are unhealthy:"); verdict.IsZero() || at.Sub(verdict) > time.Second {
			t.Errorf("the canary was taken back %s after the verdict", at.Sub(verdict))
		} else {
			t.Logf("the canary was taken back %s after the verdict", at.Sub(verdict))
		}
	case <-time.After(podTimeout):
		t.Error("the canary was not taken back")
	}
	if bad, err := c.badPods(t.Context()); err != nil || bad == 0 {
		t.Errorf("%d pods have told of the bad text: %v", bad, err)
	}

	c.patch(`{"spec":{"template":{"metadata":{"annotations":{"update":"1"}}}}}`) // and all pods are well again
	c.awaitTold("all pods show the old text", func(int) []string { return []string{"first"} })
	c.writeCanary("second")
	disturbed := make(chan error, 1)
	go func() { disturbed <- c.disturb(t.Context()) }()
	c.end(c.startRollout("--timeout=3m"), 0)
	if err := <-disturbed; err != nil {
		t.Error(err)
	}
	c.awaitTold("the canary for all", func(int) []string { return nil })
}

// disturb evicts some pods, as a drain does, and then replaces all of them, as a rolling update does.
func (c *canaried) disturb(ctx context.Context) error {
	<-time.After(10 * time.Second)
	pods, err := c.client.CoreV1().Pods(c.name).List(ctx, metav1.ListOptions{LabelSelector: "app=canaried"})
	if err != nil {
		return err
	}
	for i := range pods.Items[:5] {
		err := c.client.CoreV1().Pods(c.name).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pods.Items[i].Name}})
		if err != nil {
			return fmt.Errorf("evict %s: %w", pods.Items[i].Name, err)
		}
	}
	<-time.After(20 * time.Second)
	_, err = c.client.AppsV1().Deployments(c.name).Patch(ctx, "app", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"metadata":{"annotations":{"update":"2"}}}}}`), metav1.PatchOptions{})
	return err
}
