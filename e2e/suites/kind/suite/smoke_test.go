package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestSmokeExample runs the Job of deploy/examples/smoke.yaml on a cluster as it should be, and on
// others: its log says what is wrong. Only the image is replaced, and the probe stands for curl.
func TestSmokeExample(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// spoil changes the example's objects.
		spoil func(runtime.Object)
		// wants are what the log says.
		wants []string
	}{
		{"well", func(runtime.Object) {}, []string{"Succeeded: "}},
		{"with the node's identity", func(o runtime.Object) { setDriver(o, "node-identity.refvol.dev") }, []string{"Succeeded: "}},
		{"with the pod's identity", func(o runtime.Object) { setDriver(o, podIdentityDriver) }, []string{"Succeeded: "}},
		{"no driver", func(o runtime.Object) { setDriver(o, "none.refvol.dev") }, []string{
			"FAILED: the driver csi.refvol.dev is not on the pod's node",
			"What to do: install refvol",
		}},
		{"no rights", func(o runtime.Object) {
			if role, ok := o.(*rbacv1.Role); ok {
				role.Rules = nil
			}
		}, []string{
			`FAILED: the service account may not get the pod refvol-smoke-reader, or there is none: pods \"refvol-smoke-reader\" is forbidden`,
			"What to do: apply the Role",
		}},
		{"never updated", func(o runtime.Object) {
			if p, ok := o.(*corev1.Pod); ok {
				p.Spec.Volumes[0].CSI.VolumeAttributes["updatePolicy"] = "Pinned"
			}
		}, []string{"FAILED: the file was not updated within 10 s", "What to do: kubectl describe pod refvol-smoke-reader"}},
		{"wrong mode", func(o runtime.Object) {
			if p, ok := o.(*corev1.Pod); ok {
				p.Spec.Volumes[0].CSI.VolumeAttributes["defaultMode"] = "0444"
			}
		}, []string{"FAILED: the pod refvol-smoke-reader is Failed: ", "/smoke/key has the mode 444, not 440"}}, // since 1.37 the pod has a message too
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNamespace(t)
			var pod *corev1.Pod
			var job *batchv1.Job
			var others []runtime.Object
			for _, o := range example(t, "smoke.yaml") {
				c.spoil(o)
				switch o := o.(type) {
				case *corev1.Pod:
					pod = o
				case *batchv1.Job:
					job = o
				default:
					others = append(others, o)
				}
			}
			n.createExample(append(others, pod))
			for _, spec := range []*corev1.PodSpec{&pod.Spec, &job.Spec.Template.Spec} {
				withShell(spec, spec.Containers[0].Image, "curl")
			}
			start, update := "300", "120"
			switch c.name { // these wait for what doesn't come
			case "no driver":
				start = "90"
			case "never updated":
				update = "10"
			}
			job.Spec.Template.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "START_SECONDS", Value: start}, {Name: "UPDATE_SECONDS", Value: update}}
			n.create(pod)
			if _, err := n.client.BatchV1().Jobs(n.name).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			want := batchv1.JobComplete
			if strings.HasPrefix(c.wants[0], "FAILED") {
				want = batchv1.JobFailed
			}
			if condition := n.jobEnds(job.Name); condition != want {
				t.Errorf("the Job is %s, want %s", condition, want)
			}
			n.jobSays(job.Name, c.wants...)
		})
	}
}

// setDriver has a pod's volumes be of another driver.
func setDriver(o runtime.Object, name string) {
	if p, ok := o.(*corev1.Pod); ok {
		p.Spec.Volumes[0].CSI.Driver = name
	}
}

// jobEnds waits until a Job has ended and returns how.
func (n *namespace) jobEnds(name string) batchv1.JobConditionType {
	n.t.Helper()
	var how batchv1.JobConditionType
	eventually(n.t, 4*podTimeout, "end of the Job "+name, func(ctx context.Context) error {
		job, err := n.client.BatchV1().Jobs(n.name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range job.Status.Conditions {
			if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
				how = c.Type
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", job.Status.Conditions)
	})
	return how
}

// jobSays waits until the log of a Job's one pod has the texts. The log of a container may be incomplete or missing for a moment after its end.
func (n *namespace) jobSays(name string, texts ...string) {
	n.t.Helper()
	eventually(n.t, podTimeout/2, "the log of the Job "+name, func(ctx context.Context) error {
		pods, err := n.client.CoreV1().Pods(n.name).List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + name})
		if err != nil || len(pods.Items) != 1 {
			return errors.Join(err, fmt.Errorf("the Job has %d pods", len(pods.Items)))
		}
		log, err := n.client.CoreV1().Pods(n.name).GetLogs(pods.Items[0].Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err != nil {
			return err
		}
		lacks := slices.DeleteFunc(slices.Clone(texts), func(text string) bool { return strings.Contains(string(log), text) })
		if len(lacks) > 0 {
			return fmt.Errorf("it lacks %q:\n%s", lacks, log)
		}
		return nil
	})
}
