package suite

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/volume"
)

// verdict is what a rollout prints, and the time at which it names unhealthy pods.
type verdict struct {
	strings.Builder
	at time.Time
}

// Write stores lines.
func (v *verdict) Write(lines []byte) (int, error) {
	if strings.Contains(string(lines), "are unhealthy:") {
		v.at = time.Now()
	}
	return v.Builder.Write(lines)
}

// takenBack sends the time at which the canary's share is 0% again after another one, until ctx ends.
func (c *canaried) takenBack(ctx context.Context) <-chan time.Time {
	c.t.Helper()
	watching, err := c.client.CoreV1().ConfigMaps(c.name).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=settings-canary"})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(watching.Stop)
	taken := make(chan time.Time, 1)
	go func() {
		given := false
		for event := range watching.ResultChan() {
			object, err := meta.Accessor(event.Object)
			if err != nil {
				continue
			}
			isZero := object.GetAnnotations()[volume.CanaryAnnotation] == "0%"
			if given && isZero {
				taken <- time.Now()
				return
			}
			given = given || !isZero
		}
	}()
	return taken
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

// TestRolloutOfACanary: a bad canary is taken back at once by the command, and no pod above the share of the first step has seen it. It runs
// with no other test, as the command looks at all nodes.
func TestRolloutOfACanary(t *testing.T) {
	c := newCanaried(t, 0)
	first := func(int) []string { return []string{"first"} }
	c.awaitTold("no pod sees the canary", first)
	c.patchConfigMap("settings-canary", `{"data":{"text":"bad"}}`)
	taken := c.takenBack(t.Context())

	var printed verdict
	// A busy kubelet tells of a restart late, and the command ends once it has.
	command := exec.CommandContext(t.Context(), refvolProgram(t), "rollout", "configmap/settings-canary", "-n", c.name, "--steps=10%,50%,100%", "--every=5m")
	command.Stdout, command.Stderr = &printed, &printed
	err := command.Run()
	t.Logf("%v\n%s", err, printed.String())
	if err := leak.Check("the output", printed.String()); err != nil {
		t.Error(err)
	}
	if status := command.ProcessState.ExitCode(); status != 1 || printed.at.IsZero() {
		t.Fatalf("status %d, want 1 because of unhealthy pods", status)
	}
	select {
	case at := <-taken:
		t.Logf("the canary was taken back %s after the verdict", at.Sub(printed.at))
		if at.Sub(printed.at) > time.Second {
			t.Error("that is late")
		}
	case <-time.After(podTimeout):
		t.Error("the canary was not taken back")
	}
	eventually(t, podTimeout, "pods have told of the bad text", func(ctx context.Context) error { // a log may be away for a moment
		bad, err := c.badPods(ctx)
		if err == nil && bad == 0 {
			err = errors.New("no pod has")
		}
		return err
	})
}
