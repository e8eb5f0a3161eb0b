package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
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
	w.createConfigMap("settings", object{"mode": "slow"})
	labels := map[string]string{"app": "web"}
	template := withVariable("web")
	template.Labels["app"] = "web"
	template.Annotations = map[string]string{"refvol.dev/spread": webSpread.String()}
	c := &template.Spec.Containers[0]
	c.Args = []string{"serve", fmt.Sprint(":", webPort), "MODE"}
	c.ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(webPort)}},
		PeriodSeconds: 1, FailureThreshold: 1,
	}
	d, err := w.client.AppsV1().Deployments(w.name).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(webReplicas)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: template.Labels, Annotations: template.Annotations}, Spec: template.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.client.CoreV1().Services(w.name).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(webPort)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.awaitReplicas(d.Name)
	for i := range w.list(t.Context()) {
		w.pods = append(w.pods, &pod{w.namespace, &w.list(t.Context())[i]})
	}
	return w
}

// awaitReplicas waits until all pods of a Deployment are ready.
func (w *web) awaitReplicas(name string) {
	w.t.Helper()
	eventually(w.t, readersTimeout, fmt.Sprint(webReplicas, " pods ready"), func(ctx context.Context) error {
		d, err := w.client.AppsV1().Deployments(w.name).Get(ctx, name, metav1.GetOptions{})
		if err == nil && d.Status.ReadyReplicas != webReplicas {
			err = fmt.Errorf("%d are", d.Status.ReadyReplicas)
		}
		return err
	})
}

func (w *web) list(ctx context.Context) []corev1.Pod {
	w.t.Helper()
	pods, err := w.client.CoreV1().Pods(w.name).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		w.t.Fatal(err)
	}
	return pods.Items
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

// rollout runs the command, and fails the test if its exit status is another.
func (w *web) rollout(status int, args ...string) commandResult {
	w.t.Helper()
	args = append([]string{"rollout", "configmap/settings", "-n", w.name, "--driver-name=" + nodeIdentityDriver, "--plugin-namespace=refvol-node-identity"}, args...)
	r := kubectlRefvol(w.t, args...)
	w.t.Logf("%q: status %d\n%s%s", args, r.status, r.stdout, r.stderr)
	if r.status != status {
		w.t.Fatalf("status %d, want %d", r.status, status)
	}
	return r
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

// TestRestartsOfADeployment: 30 pods restart for a change, spread over a minute, under a client that counts failed requests. Then a bad
// value is given to one of them, and to those of its place; the others never see it, and a revert mends that. It runs with no other test, as the
// command looks at all nodes.
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
	w.updateConfigMap("settings", object{"mode": "fast"})
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

	w.rollout(0, "--to=0%")
	w.patchConfigMap("settings", `{"data":{"mode":"bad"}}`)
	result := w.rollout(1, "--steps=1,100%", "--every=1m", "--opened", "--allow-restarts=1")
	first, bad := ofLowestPlace(w.pods), []string(nil)
	for _, p := range w.pods {
		if p.restarts(t) > 1 {
			bad = append(bad, p.Name)
			if !slices.Contains(first, p.Name) {
				t.Errorf("%s has restarted, and only %q may", p.Name, first)
			}
		}
	}
	if !slices.ContainsFunc(bad, func(name string) bool { return strings.Contains(result.stdout, "pod "+w.name+"/"+name+" ") }) {
		t.Fatalf("%q restarted, and the command names none of them", bad)
	}
	w.patchConfigMap("settings", `{"data":{"mode":"fast"}}`)
	w.rollout(0, "--to=100%", "--every=5s", "--opened", "--allow-restarts=1")
	w.awaitMode("fast")
	for _, p := range w.pods {
		if n := p.restarts(t); n != 1 && !slices.Contains(first, p.Name) {
			t.Errorf("%s has restarted %d times", p.Name, n)
		}
	}
}

// TestRestartsBesideOthers: a native sidecar that a webhook has put before refvol's restarts with the pod, and so does a pod whose node
// was cut off from the API server, or whose kubelet was down, when the change came.
func TestRestartsBesideOthers(t *testing.T) {
	needsLong(t)
	n := newNamespace(t)
	n.needsPolicies()
	n.createConfigMap("settings", object{"mode": "0"})
	spec, err := n.client.CoreV1().Pods(n.name).Create(t.Context(), withVariable("meshed"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	mesh := newContainer("mesh", nil)
	mesh.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	meshed := newPod("meshed")
	meshed.Spec = spec.Spec
	meshed.Spec.InitContainers = append([]corev1.Container{mesh}, meshed.Spec.InitContainers...)
	pods := []*pod{n.start(meshed), n.start(withVariable("plain"))}
	await := func(value string) {
		t.Helper()
		eventually(t, 2*restartTimeout, "the mode "+value, func(ctx context.Context) error {
			for _, p := range pods {
				if err := p.hasVariables(ctx, map[string]string{"MODE": value}); err != nil {
					return err
				}
			}
			return nil
		})
		for _, p := range pods {
			p.awaitReady()
		}
	}
	n.updateConfigMap("settings", object{"mode": "1"})
	await("1")
	if status := pods[0].Status.InitContainerStatuses[0]; status.Name != "mesh" || status.RestartCount == 0 {
		t.Errorf("the other sidecar: %+v", status)
	}

	node := pods[1].Spec.NodeName
	n.whileCutOff(node, func() { n.updateConfigMap("settings", object{"mode": "2"}); <-time.After(5 * time.Second) })
	await("2")
	mustDocker(t, "exec", node, "systemctl", "stop", "kubelet")
	started := false
	startKubelet := func(ctx context.Context) error {
		if started {
			return nil
		}
		started = true
		return docker(ctx, "exec", node, "systemctl", "start", "kubelet")
	}
	defer n.undo(startKubelet)
	n.updateConfigMap("settings", object{"mode": "3"})
	<-time.After(20 * time.Second) // the sidecar exits meanwhile
	if err := startKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	await("3")
	for _, p := range pods {
		if restarts := p.restarts(t); restarts > 6 {
			t.Errorf("%s has restarted %d times", p.Name, restarts)
		}
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
	n.createConfigMap("settings", object{"mode": "0"})
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
		n.createConfigMap(name, object{"mode": "0"})
		spec := withVariable(name)
		spec.Spec.Containers[0].Env[0].ValueFrom.ConfigMapKeyRef.Name = name
		pods = append(pods, n.start(spec))
	}
	var restarts []time.Duration
	for round := range rounds {
		for _, p := range pods {
			value := fmt.Sprint(round + 1)
			begin := time.Now()
			n.updateConfigMap(p.Name, object{"mode": value})
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
