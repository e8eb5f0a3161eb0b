package suite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	rolloutAnnotation = "refvol.dev/rollout"
	// rolloutTimeout is how long all pods may take to tell of a text, or to be ready again after a back-off.
	rolloutTimeout = 5 * time.Minute
)

// rolled are pods whose programs tell of each text of the ConfigMap settings, and fail at one that begins with bad.
type rolled struct {
	*namespace
	pods []*pod
}

// newRolled starts pods, spread over the workers.
func newRolled(t *testing.T, count int) *rolled {
	t.Helper()
	r := &rolled{namespace: newNamespace(t)}
	workers := r.workers(t)
	if len(workers) < 3 {
		t.Fatalf("there are %d workers, want 3", len(workers))
	}
	r.createConfigMap("settings", object{"text": "first"})
	for i := range count {
		spec := newPod(fmt.Sprintf("app-%02d", i), refvol("settings", attributes{"configMap": "settings"}))
		spec.Spec.NodeName = workers[i%len(workers)]
		spec.Spec.Containers[0].Args = []string{"obey", mountDir + "settings/text"}
		r.pods = append(r.pods, r.create(spec))
	}
	for _, p := range r.pods {
		p.awaitReady()
	}
	return r
}

// annotations returns those of the ConfigMap.
func (r *rolled) annotations() map[string]string {
	r.t.Helper()
	settings, err := r.client.CoreV1().ConfigMaps(r.name).Get(r.t.Context(), "settings", metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return settings.Annotations
}

// rollout runs the command, and fails the test if its exit status is another.
func (r *rolled) rollout(status int, args ...string) commandResult {
	r.t.Helper()
	result := kubectlRefvol(r.t, append([]string{"rollout", "configmap/settings", "-n", r.name}, args...)...)
	r.t.Logf("%q: status %d\n%s%s", args, result.status, result.stdout, result.stderr)
	if result.status != status {
		r.t.Fatalf("status %d, want %d", result.status, status)
	}
	return result
}

// told returns the texts that a pod has told of, by the logs of its container and of the one before that.
func (r *rolled) told(ctx context.Context, name string) ([]string, error) {
	p, err := r.client.CoreV1().Pods(r.name).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var texts []string
	restarted := len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 0
	for _, previous := range []bool{true, false} {
		if previous && !restarted {
			continue
		}
		log, err := r.client.CoreV1().Pods(r.name).GetLogs(name, &corev1.PodLogOptions{Previous: previous}).DoRaw(ctx)
		if err != nil {
			return nil, fmt.Errorf("log of %s: %w", name, err)
		}
		texts = append(texts, strings.Fields(string(log))...)
	}
	return texts, nil
}

// awaitTold waits until all pods have told of these texts, and of no other.
func (r *rolled) awaitTold(want ...string) {
	r.t.Helper()
	eventually(r.t, rolloutTimeout, "all pods have told of the texts", func(ctx context.Context) error {
		for _, p := range r.pods {
			if texts, err := r.told(ctx, p.Name); err != nil || !slices.Equal(texts, want) {
				return errors.Join(err, fmt.Errorf("%s on %s has told of %q, want %q", p.Name, p.Spec.NodeName, texts, want))
			}
		}
		return nil
	})
}

// ofLowestPlace returns the names of the pods that take a change first. With 30 pods on 100 places, they are sometimes two or more.
func ofLowestPlace(pods []*pod) (names []string) {
	lowest := slices.MinFunc(pods, func(a, b *pod) int { return volume.RolloutPlace(a.UID) - volume.RolloutPlace(b.UID) })
	for _, p := range pods {
		if volume.RolloutPlace(p.UID) == volume.RolloutPlace(lowest.UID) {
			names = append(names, p.Name)
		}
	}
	return names
}

// awaitBad waits until the pods of the lowest place have told of a bad text, and returns their names. No other pod has. The log of a
// container that has just ended may lag behind, or be away for a moment.
func (r *rolled) awaitBad() []string {
	r.t.Helper()
	bad := ofLowestPlace(r.pods)
	eventually(r.t, podTimeout, "only the first pods have told of the bad text", func(ctx context.Context) error {
		for _, p := range r.pods {
			texts, err := r.told(ctx, p.Name)
			if err != nil {
				return err
			}
			if got := strings.Join(texts, " "); got != "first second" && !(slices.Contains(bad, p.Name) && strings.Contains(got, "bad")) {
				return fmt.Errorf("%s has told of %q, and %q may have told of the bad text", p.Name, got, bad)
			}
			if slices.Contains(bad, p.Name) && !slices.Contains(texts, "bad") {
				return fmt.Errorf("%s has told of %q", p.Name, texts)
			}
		}
		return nil
	})
	return bad
}

// TestRollout: a good value reaches 30 pods of three nodes step by step. A bad one reaches the first of them, and no other. A revert takes two
// steps. It runs with no other test, as the command looks at all nodes.
func TestRollout(t *testing.T) {
	r := newRolled(t, 30)
	r.awaitTold("first")
	r.rollout(0, "--to=0%")
	r.patchConfigMap("settings", `{"data":{"text":"second"}}`)
	r.awaitTold("first")
	r.rollout(0, "--steps=1,50%,100%", "--every=2s")
	r.awaitTold("first", "second")
	held := map[string]string{rolloutAnnotation: "0%"}
	if got := r.annotations(); !maps.Equal(got, held) {
		t.Errorf("after the rollout the annotations are %v, want %v", got, held)
	}

	r.patchConfigMap("settings", `{"data":{"text":"bad"}}`)
	// A busy kubelet tells of a restart late, and the command ends once it has.
	result := r.rollout(1, "--steps=1,50%,100%", "--every=5m")
	bad := r.awaitBad()
	if !slices.ContainsFunc(bad, func(name string) bool { return strings.Contains(result.stdout, "pod "+r.name+"/"+name+" ") }) {
		t.Fatalf("the bad value is in %q, and the command names none of them", bad)
	}

	r.patchConfigMap("settings", `{"data":{"text":"second"}}`) // the first of two steps: the pods of the share heal
	r.awaitLast(bad, "second")
	r.rollout(0, "--to=100%", "--every=2s") // the second step
	if got := r.annotations(); !maps.Equal(got, held) {
		t.Errorf("after the revert the annotations are %v, want %v", got, held)
	}
	for _, p := range r.pods {
		r.awaitLast([]string{p.Name}, "second")
		p.awaitReady()
	}
}

// awaitLast waits until a text is the last one that pods have told of. Their logs may lag behind.
func (r *rolled) awaitLast(names []string, text string) {
	r.t.Helper()
	eventually(r.t, rolloutTimeout, fmt.Sprintf("%q tell of %s", names, text), func(ctx context.Context) error {
		for _, name := range names {
			texts, err := r.told(ctx, name)
			if err == nil && (len(texts) == 0 || texts[len(texts)-1] != text) {
				err = fmt.Errorf("%s has told of %q", name, texts)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
