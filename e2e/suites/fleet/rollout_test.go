package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// shownData is what a volume shows of the Secret.
type shownData struct {
	status.Version

	password string
}

// holders are the volumes of nodes whose plugins hold what the annotation holds. They look at the Secret when they are asked.
type holders struct {
	w *world

	mu sync.Mutex
	// pods has those of each node, by name, and shows what each shows, by UID.
	pods  map[string]map[string]*corev1.Pod
	shows map[string]shownData
}

// node makes a node with pods.
func (h *holders) node(name string, pods int) {
	h.w.t.Helper()
	h.w.registerHere(name)
	h.pods[name] = map[string]*corev1.Pod{}
	for i := range pods {
		pod := h.w.newAppPod(fmt.Sprint(name, "-", i), name)
		h.w.putPod(pod)
		h.pods[name][pod.Name] = pod
	}
	address := serve(h.w.t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		report, err := h.report(r.Context(), name)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(report)
	}))
	h.w.pluginPod(name, address)
}

// report brings the volumes of a node to what they show now.
func (h *holders) report(ctx context.Context, name string) (*status.Report, error) {
	secret, err := shared.Client().CoreV1().Secrets(h.w.namespace).Get(ctx, "db", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	report := &status.Report{Header: status.Header{
		APIVersion: status.APIVersion, Kind: status.Kind, Driver: harness.DriverName, Node: name, ObservedAt: time.Now(), KnowsRollout: true,
	}}
	share, _ := volume.ParseShare(secret.Annotations[volume.RolloutAnnotation])
	now := shownData{status.Version{UID: string(secret.UID), ResourceVersion: secret.ResourceVersion}, string(secret.Data["password"])}
	for _, pod := range h.pods[name] {
		uid, condition := string(pod.UID), "Current"
		before, found := h.shows[uid]
		if found && before.password != now.password && volume.RolloutPlace(pod.UID) > share {
			condition = "Held"
		} else {
			h.shows[uid] = now
		}
		shown := h.shows[uid].Version
		report.Volumes = append(report.Volumes, status.Volume{
			Name: "settings", Pod: status.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: uid}, Condition: condition, Bytes: 4096,
			Objects: []status.VolumeObject{{
				Object: &status.Object{Kind: "Secret", Namespace: h.w.namespace, Name: "db", State: "present"}, Shown: &shown,
			}},
		})
	}
	report.Number()
	return report, nil
}

// with returns how many pods show a password that begins with a text.
func (h *holders) with(text string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, shows := range h.shows {
		if strings.HasPrefix(shows.password, text) {
			n++
		}
	}
	return n
}

// set writes a password, and keeps or sets the annotation.
func (h *holders) set(password, share string) {
	h.w.t.Helper()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{volume.RolloutAnnotation: share}}, "stringData": map[string]string{"password": password},
	})
	if err != nil {
		h.w.t.Fatal(err)
	}
	if _, err := shared.Client().CoreV1().Secrets(h.w.namespace).Patch(h.w.t.Context(), "db", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		h.w.t.Fatal(err)
	}
}

// secret returns the Secret's annotations, and who manages them.
func (h *holders) secret() (annotations map[string]string, managers []string) {
	h.w.t.Helper()
	secret, err := shared.Client().CoreV1().Secrets(h.w.namespace).Get(h.w.t.Context(), "db", metav1.GetOptions{})
	if err != nil {
		h.w.t.Fatal(err)
	}
	for _, m := range secret.ManagedFields {
		managers = append(managers, m.Manager)
	}
	return secret.Annotations, managers
}

// rollout runs the command.
func (h *holders) rollout(args ...string) result {
	h.w.t.Helper()
	r := h.w.run(append([]string{"rollout", "secret/db", "-n", h.w.namespace}, args...)...)
	h.w.t.Logf("%s%s", r.stdout, r.stderr)
	return r
}

func newHolders(t *testing.T) *holders {
	t.Helper()
	h := &holders{w: newWorld(t), pods: map[string]map[string]*corev1.Pod{}, shows: map[string]shownData{}}
	h.node("hold-a", 6)
	h.node("hold-b", 6)
	return h
}

// mayPatch gives the caller the right that the command needs beside get.
func (h *holders) mayPatch() {
	h.w.t.Helper()
	roles := shared.Client().RbacV1().Roles(h.w.namespace)
	role, err := roles.Get(h.w.t.Context(), "read", metav1.GetOptions{})
	if err != nil {
		h.w.t.Fatal(err)
	}
	role.Rules[0].Verbs = []string{"get", "patch"}
	if _, err := roles.Update(h.w.t.Context(), role, metav1.UpdateOptions{}); err != nil {
		h.w.t.Fatal(err)
	}
	harness.Eventually(h.w.t, time.Minute, func() error {
		if r := h.rollout("--to=0%"); r.status != 0 {
			return errors.New(r.stderr)
		}
		return nil
	})
}

// mayList gives the caller the right that rollout status needs.
func (h *holders) mayList() {
	h.w.t.Helper()
	rbac, meta := shared.Client().RbacV1(), metav1.ObjectMeta{Name: "list"}
	_, err := rbac.Roles(h.w.namespace).Create(h.w.t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"configmaps", "secrets"}, Verbs: []string{"list"},
	}}}, metav1.CreateOptions{})
	if err != nil {
		h.w.t.Fatal(err)
	}
	_, err = rbac.RoleBindings(h.w.namespace).Create(h.w.t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, Subjects: caller(), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "list"},
	}, metav1.CreateOptions{})
	if err != nil {
		h.w.t.Fatal(err)
	}
	harness.Eventually(h.w.t, time.Minute, func() error {
		if r := h.w.run("rollout", "status", "-n", h.w.namespace); r.status != 0 {
			return errors.New(r.stderr)
		}
		return nil
	})
}

// TestRolloutPauses: a paused object is not rolled out, whoever tries, until it is resumed. An abort takes a canary back, and pauses a held
// version.
func TestRolloutPauses(t *testing.T) {
	h := newHolders(t)
	if r := h.rollout("--to=0%"); r.status != 2 || !strings.Contains(r.stderr, `cannot patch resource "secrets"`) {
		t.Errorf("without the right: %+v", r)
	}
	h.mayPatch()
	h.set("good "+leak.Value, "0%")
	sub := func(name, says string) {
		t.Helper()
		if r := h.w.run("rollout", name, "secret/db", "-n", h.w.namespace); r.status != 0 || !strings.Contains(r.stdout, says) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	isPaused := func() {
		t.Helper()
		if r := h.rollout("--steps=100%", "--every=1s"); r.status != 1 || !strings.Contains(r.stderr, "paused by its annotation refvol.dev/rollout-paused") || h.with("good") != 0 {
			t.Errorf("%+v, in %d pods", r, h.with("good"))
		}
	}
	sub("pause", "paused")
	isPaused()
	h.mayList()
	if r := h.w.run("rollout", "status", "-n", h.w.namespace); r.status != 0 || !strings.Contains(strings.Join(strings.Fields(r.stdout), " "), "secret/db held version 0% yes 0 12 0 -") {
		t.Errorf("%+v", r)
	}
	if r := h.w.run("rollout", "status", "-n", h.w.namespace, "-o", "jsonpath={.items[0].name} {.items[0].others}"); r.status != 0 || strings.TrimSpace(r.stdout) != "db 12" {
		t.Errorf("%+v", r)
	}
	sub("resume", "no longer paused")
	sub("abort", "paused: to take the change back, write the old values")
	isPaused()
	sub("resume", "no longer paused")
	if r := h.rollout("--steps=100%", "--every=1s"); r.status != 0 || h.with("good") != 12 {
		t.Errorf("resumed: %+v, in %d pods", r, h.with("good"))
	}
	canary := fmt.Sprintf(`{"metadata":{"annotations":{%q:"50%%"}}}`, volume.CanaryAnnotation)
	if _, err := shared.Client().CoreV1().Secrets(h.w.namespace).Patch(t.Context(), "db", types.MergePatchType, []byte(canary), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	sub("abort", "taken back: no pod shows the canary")
	if annotations, managers := h.secret(); annotations[volume.CanaryAnnotation] != "0%" || !slices.Contains(managers, "refvol-rollout") {
		t.Errorf("after the abort: %v of %q", annotations, managers)
	}
	if r := h.w.run("rollout", "abort", "secret/none", "-n", h.w.namespace); r.status == 0 {
		t.Errorf("an abort of nothing: %+v", r)
	}
}

// apply does what a GitOps tool does again and again. Without a share its Git has no annotation.
func (h *holders) apply(ctx context.Context, password, share string) error {
	secret := corev1apply.Secret("db", h.w.namespace).WithStringData(map[string]string{"password": password})
	if share != "" {
		secret.WithAnnotations(map[string]string{volume.RolloutAnnotation: share})
	}
	_, err := shared.Client().CoreV1().Secrets(h.w.namespace).Apply(ctx, secret, metav1.ApplyOptions{FieldManager: "kustomize-controller", Force: true})
	return err
}

// TestRolloutBesideGitOps: a tool that applies the object again and again doesn't disturb a rollout, unless its Git has the annotation.
func TestRolloutBesideGitOps(t *testing.T) {
	h := newHolders(t)
	h.mayPatch()
	for _, test := range []struct {
		share string
		want  int
	}{{"", 0}, {"0%", 1}} {
		share, want := test.share, test.want
		h.set("before "+leak.Value, "0%")
		for _, node := range []string{"hold-a", "hold-b"} {
			h.mu.Lock()
			clear(h.shows)
			h.mu.Unlock()
			if _, err := h.report(t.Context(), node); err != nil {
				t.Fatal(err)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		var tool sync.WaitGroup
		if err := h.apply(ctx, "after "+leak.Value, share); err != nil {
			t.Fatal(err)
		}
		tool.Go(func() {
			for ctx.Err() == nil {
				if err := h.apply(ctx, "after "+leak.Value, share); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				timer := time.NewTimer(time.Second)
				select {
				case <-timer.C:
				case <-ctx.Done():
				}
				timer.Stop()
			}
		})
		r := h.rollout("--steps=50%,100%", "--every=5s")
		stop()
		tool.Wait()
		if r.status != want || want == 0 && h.with("after") != 12 || want != 0 && !strings.Contains(r.stderr, "somebody else has changed or deleted it") {
			t.Errorf("with the annotation %q in Git: %+v, want status %d", share, r, want)
		}
	}
}
