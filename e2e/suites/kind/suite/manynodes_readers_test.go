package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/e2e/tools/probe/clock"
)

// requestTimeout is how long a reader's log may take.
const requestTimeout = 10 * time.Second

// readers are pods that tell of each text that their volumes get. The volume settings is of the one
// ConfigMap settings, the volume login of a Secret of the reader's own. The pods of one Deployment
// have the same Secrets, so each reader is a Deployment.
type readers struct {
	*namespace
	count   int
	workers []string
	// inspectors look at the mounts of each node.
	inspectors map[string]*pod
	// watches is how many watches of Secrets there were without the readers.
	watches int
	// step counts the changes, and sent has the times of the last one by the object's name.
	step int
	sent map[string]time.Duration
}

// readerVolumes are the names of a reader's volumes.
func readerVolumes() []string { return []string{"settings", "login"} }

// newReaders starts readers, spread over the workers, and waits until all have told of the first text.
func newReaders(t *testing.T, count int) *readers {
	t.Helper()
	r := &readers{namespace: newNamespace(t), count: count, inspectors: map[string]*pod{}, sent: map[string]time.Duration{}}
	var all []string
	if all, r.workers = r.nodes(t); len(r.workers) < 3 {
		t.Fatalf("there are %d workers, want 3", len(r.workers))
	}
	r.watches = r.settledWatches(t)
	r.createConfigMap("settings", r.object())
	for _, name := range r.names() {
		r.createSecret(name, r.object())
		r.deploy(name)
	}
	for _, node := range all {
		r.inspectors[node] = r.startOnNode("inspector-"+node, node)
	}
	r.awaitCurrent()
	r.wantHoldings()
	return r
}

// names are those of the readers' Deployments and Secrets.
func (r *readers) names() []string {
	var names []string
	for i := range r.count {
		names = append(names, fmt.Sprintf("reader-%02d", i))
	}
	return names
}

// text is what all objects hold at this step. It grows in byte order.
func (r *readers) text() string { return fmt.Sprintf("%06d", r.step) }

func (r *readers) object() object { return object{"text": r.text()} }

// change brings all objects to the next text.
func (r *readers) change() {
	r.t.Helper()
	r.step++
	r.sent["settings"] = now(r.t)
	r.updateConfigMap("settings", r.object())
	for _, name := range r.names() {
		r.sent[name] = now(r.t)
		r.updateSecret(name, r.object())
	}
}

// deploy creates the Deployment of one reader.
func (r *readers) deploy(name string) {
	r.t.Helper()
	spec := newPod(name, refvol("settings", attributes{"configMap": "settings"}), refvol("login", attributes{"secret": name})).Spec
	spec.Containers[0].Args = []string{"follow", readerFile("settings"), readerFile("login")}
	spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew:           1,
		TopologyKey:       corev1.LabelHostname,
		WhenUnsatisfiable: corev1.DoNotSchedule,
		NodeTaintsPolicy:  new(corev1.NodeInclusionPolicyHonor),
		LabelSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": "reader"}},
	}}
	own := map[string]string{"app": "reader", "reader": name}
	_, err := r.client.AppsV1().Deployments(r.name).Create(r.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: own},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: own}, Spec: spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
}

// readerFile is the one file of a reader's volume.
func readerFile(volume string) string { return mountDir + volume + "/text" }

// told is what a reader tells, as the probe's command follow describes it.
type told struct {
	File  string        `json:"file"`
	Text  string        `json:"text"`
	Error string        `json:"error"`
	Reads int           `json:"reads"`
	At    time.Duration `json:"at"`
}

// history is what a reader has told, also in the run of its container before this one.
type history struct {
	pod  *corev1.Pod
	told []told
}

// of returns what was told of a volume.
func (h history) of(volume string) []told {
	var all []told
	for _, line := range h.told {
		if line.File == readerFile(volume) {
			all = append(all, line)
		}
	}
	return all
}

// last returns the last that was told of a volume, and before the one before that.
func (h history) last(volume string) told {
	all := h.of(volume)
	return all[len(all)-1]
}

func (h history) before(volume string) told {
	all := h.of(volume)
	return all[max(0, len(all)-2)]
}

// has tells whether both volumes have the text.
func (h history) has(text string) bool {
	for _, volume := range readerVolumes() {
		if len(h.of(volume)) == 0 || h.last(volume).Text != text {
			return false
		}
	}
	return true
}

// awaitCurrent waits until all readers run and have told of this step's text in both volumes. None may
// have told of a read that failed or gave an older text.
func (r *readers) awaitCurrent() map[types.UID]history {
	r.t.Helper()
	current := map[types.UID]history{}
	eventually(r.t, readersTimeout, "all readers have "+r.text(), func(ctx context.Context) error {
		pods, err := r.client.CoreV1().Pods(r.name).List(ctx, metav1.ListOptions{LabelSelector: "app=reader"})
		if err != nil {
			return err
		}
		if len(pods.Items) != r.count {
			return fmt.Errorf("there are %d of %d", len(pods.Items), r.count)
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if _, ok := current[p.UID]; ok {
				continue
			}
			h, err := r.history(ctx, p)
			if err != nil {
				return err
			}
			if !h.has(r.text()) {
				return fmt.Errorf("%s on %s has not: %+v", p.Name, p.Spec.NodeName, h.told[max(0, len(h.told)-2):])
			}
			current[p.UID] = h
		}
		return nil
	})
	for _, h := range current {
		wrong := slices.DeleteFunc(slices.Clone(h.told), func(line told) bool { return line.Error == "" })
		if len(wrong) > 0 {
			r.t.Errorf("%s on %s: %d reads failed or gave an older text, the last: %+v", h.pod.Name, h.pod.Spec.NodeName, len(wrong), wrong[len(wrong)-1])
		}
	}
	return current
}

// history returns what a reader has told.
func (r *readers) history(ctx context.Context, p *corev1.Pod) (history, error) {
	// The connection to a node that went away may hang.
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	here, err := clock.Name()
	if err != nil {
		return history{}, err
	}
	if p.DeletionTimestamp != nil || len(p.Status.ContainerStatuses) == 0 {
		return history{}, fmt.Errorf("%s is %s on %q", p.Name, p.Status.Phase, p.Spec.NodeName)
	}
	h := history{pod: p}
	for _, previous := range []bool{true, false} {
		if previous && p.Status.ContainerStatuses[0].RestartCount == 0 {
			continue
		}
		log, err := r.client.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Previous: previous}).DoRaw(ctx)
		if err != nil {
			return history{}, fmt.Errorf("log of %s on %s: %w", p.Name, p.Spec.NodeName, err)
		}
		for line := range strings.Lines(string(log)) {
			if line = strings.TrimSpace(line); line == here {
				continue
			}
			var one told
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				return history{}, fmt.Errorf("log of %s, whose clock must be %q: %q: %w", p.Name, here, line, err)
			}
			h.told = append(h.told, one)
		}
	}
	return h, nil
}

// metrics returns the metrics of a node's plugin, each as the sum of its samples.
func (c *cluster) metrics(ctx context.Context, node string) (map[string]int, error) {
	plugin, err := c.plugin(ctx, node)
	if err != nil || plugin == nil {
		return nil, errors.Join(err, fmt.Errorf("plugin of %s: %v", node, plugin))
	}
	body, err := c.client.CoreV1().Pods(plugin.Namespace).ProxyGet("http", plugin.Name, "9810", "/metrics", nil).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	sums := map[string]int{}
	for line := range strings.Lines(string(body)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		name, _, labelled := strings.Cut(name, "{")
		if count, err := strconv.Atoi(value); ok && labelled && err == nil {
			sums[name] += count
		}
	}
	return sums, nil
}
