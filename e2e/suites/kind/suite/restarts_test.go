package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// webReplicas is how many pods the Deployment of these tests has, and webSpread the time over which their restarts are spread.
	webReplicas = 30
	webSpread   = time.Minute
	webPort     = 8080
	// mostFailed is how many of a hundred requests may fail while all pods restart.
	mostFailed = 5
)

// needsLong leaves a test out of the short form.
func needsLong(t *testing.T) {
	t.Helper()
	if os.Getenv("REFVOL_LONG") == "" {
		t.Skip("SKIP: it belongs to the long form (REFVOL_LONG=1)")
	}
}

// web is a Deployment whose pods restart for a new variable, behind a Service.
type web struct {
	*namespace
	pods []*pod
}

// newWeb starts the pods, and waits until all are ready.
func newWeb(t *testing.T) *web {
	t.Helper()
	w := &web{namespace: newNamespace(t)}
	w.needsPolicies()
	w.setConfigMap("settings", object{"mode": "slow"})
	template := withVariable("web")
	template.Annotations = map[string]string{"refvol.dev/spread": webSpread.String()}
	c := &template.Spec.Containers[0]
	c.Args = []string{"serve", fmt.Sprint(":", webPort), "MODE"}
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(webPort)}},
		PeriodSeconds: 1, FailureThreshold: 1,
	}
	w.deploy("web", webReplicas, template)
	if _, err := w.client.CoreV1().Services(w.name).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(webPort)}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, readersTimeout, "all pods are ready", func(ctx context.Context) error {
		pods, err := w.deployed(ctx, "web", webReplicas)
		w.pods = nil
		for i := range pods {
			if !ready(&pods[i]) {
				return fmt.Errorf("%s is not", pods[i].Name)
			}
			w.pods = append(w.pods, &pod{w.namespace, &pods[i]})
		}
		return err
	})
	return w
}

// withVariable is a labelled pod with the variable MODE of the ConfigMap settings, and with nothing else of it.
func withVariable(name string) *corev1.Pod {
	spec := withVariables(name, "true")
	c := &spec.Spec.Containers[0]
	c.EnvFrom, c.VolumeMounts, c.LivenessProbe, spec.Spec.Volumes = nil, nil, nil, nil
	return spec
}

// awaitMode waits until all pods are ready with the value.
func (w *web) awaitMode(value string) {
	w.t.Helper()
	eventually(w.t, readersTimeout, "all pods have the mode "+value, func(ctx context.Context) error {
		for _, p := range w.pods {
			if err := p.hasVariables(ctx, map[string]string{"MODE": value}); err != nil {
				return err
			}
		}
		return nil
	})
	for _, p := range w.pods {
		p.awaitReady()
	}
}

// requests returns how many the client has sent until now, and how many have failed.
func (w *web) requests(client *pod) (all struct{ Sent, Failed int }) {
	w.t.Helper()
	eventually(w.t, podTimeout, "a line of the client", func(ctx context.Context) error {
		last := int64(1)
		text, err := w.client.CoreV1().Pods(w.name).GetLogs(client.Name, &corev1.PodLogOptions{TailLines: &last}).DoRaw(ctx)
		if err != nil {
			return err
		}
		return json.Unmarshal(text, &all)
	})
	return all
}

// TestRestartsOfADeployment: 30 pods restart for a change, spread over a minute, under a client that counts failed requests. It runs with no
// other test, because it measures times.
func TestRestartsOfADeployment(t *testing.T) {
	needsLong(t)
	w := newWeb(t)
	caller := newPod("client")
	caller.Spec.Containers[0].Args = []string{"requests", "http://web." + w.name}
	client := w.start(caller)
	eventually(t, podTimeout, "requests", func(context.Context) error {
		if all := w.requests(client); all.Sent-all.Failed < 100 {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})

	before, begin := w.requests(client), time.Now()
	w.setConfigMap("settings", object{"mode": "fast"})
	w.awaitMode("fast")
	after := w.requests(client)
	var started []time.Duration
	for _, p := range w.pods {
		if n := p.restarts(t); n != 1 {
			t.Errorf("%s has restarted %d times", p.Name, n)
		}
		started = append(started, p.Status.ContainerStatuses[0].State.Running.StartedAt.Sub(begin).Round(time.Second))
	}
	slices.Sort(started)
	sent, failed := after.Sent-before.Sent, after.Failed-before.Failed
	t.Logf("30 pods restarted in %s: after %v; %d of %d requests failed", time.Since(begin).Round(time.Second), started, failed, sent)
	if failed*100 > sent*mostFailed {
		t.Errorf("%d of %d requests failed", failed, sent)
	}
	if first, last := started[0], started[len(started)-1]; last-first < webSpread/2 {
		t.Errorf("the restarts came within %s", last-first)
	}
}

// TestRestartFigures prints how long it takes from a change to a container with the new variable, over 100 changes, and how long
// pods start, with the sidecar and without it.
func TestRestartFigures(t *testing.T) {
	needsLong(t)
	const count, rounds, starts = 25, 4, 8
	n := newNamespace(t)
	n.needsPolicies()
	took := map[bool][]time.Duration{}
	n.setConfigMap("settings", object{"mode": "0"})
	for range starts {
		for _, labelled := range []bool{true, false} {
			spec := withVariable("start")
			if !labelled {
				delete(spec.Labels, restartLabel)
			}
			begin := time.Now()
			p := n.start(spec)
			took[labelled] = append(took[labelled], time.Since(begin))
			p.delete()
		}
	}
	var pods []*pod
	for i := range count {
		name := fmt.Sprintf("settings-%02d", i)
		n.setConfigMap(name, object{"mode": "0"})
		spec := withVariable(name)
		spec.Spec.Containers[0].Env[0].ValueFrom.ConfigMapKeyRef.Name = name
		pods = append(pods, n.start(spec))
	}
	var restarts []time.Duration
	for round := range rounds {
		for _, p := range pods {
			value := fmt.Sprint(round + 1)
			begin := time.Now()
			n.setConfigMap(p.Name, object{"mode": value})
			eventually(t, restartTimeout, "the mode "+value, func(ctx context.Context) error {
				return p.hasVariables(ctx, map[string]string{"MODE": value})
			})
			restarts = append(restarts, time.Since(begin))
		}
	}
	slices.Sort(restarts)
	slices.Sort(took[true])
	slices.Sort(took[false])
	t.Logf("change to started: p50 %s, p90 %s, p99 %s of %d", restarts[len(restarts)/2].Round(10*time.Millisecond), restarts[len(restarts)*9/10].Round(10*time.Millisecond),
		restarts[len(restarts)*99/100].Round(10*time.Millisecond), len(restarts))
	t.Logf("pod start: with the sidecar %v, without %v", took[true], took[false])
}
