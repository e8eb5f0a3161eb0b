package suite

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// smokeWithoutRegistry is what is replaced in the example, as the registry may be out of reach: the images, and the probe stands for curl.
func smokeWithoutRegistry() []string {
	const containers = "      containers:\n      - name: smoke\n"
	return []string{"docker.io/curlimages/curl:8.11.1", os.Getenv("REFVOL_SHELL_IMAGE"), containers, `      volumes: [{name: programs, emptyDir: {}}]
      initContainers:
      - name: programs
        image: ` + newContainer("programs", nil).Image + `
        args: [install, /programs/curl]
        volumeMounts: [{name: programs, mountPath: /programs}]
      containers:
      - name: smoke
        volumeMounts: [{name: programs, mountPath: /usr/bin}]
`}
}

// TestSmokeExample runs the Job of deploy/examples/smoke.yaml on a cluster as it should be, and on
// others: its log says what is wrong.
func TestSmokeExample(t *testing.T) {
	t.Parallel()
	const ofDriver = "driver: csi.refvol.dev\n"
	const start, update = `START_SECONDS, value: "120"`, `UPDATE_SECONDS, value: "30"`
	for _, c := range []struct {
		name string
		// replaced are pairs of an old and a new text of the example.
		replaced []string
		// wants are what the log says.
		wants []string
	}{
		{"well", nil, []string{"Succeeded: "}},
		{"with the node's identity", []string{ofDriver, "driver: " + nodeIdentityDriver + "\n"}, []string{"Succeeded: "}},
		{"with the pod's identity", []string{ofDriver, "driver: " + podIdentityDriver + "\n"}, []string{"Succeeded: "}},
		{"no driver", []string{ofDriver, "driver: none.refvol.dev\n", start, `START_SECONDS, value: "30"`}, []string{
			"FAILED: the driver csi.refvol.dev is not on the pod's node",
			"What to do: install refvol",
		}},
		{"no rights", []string{"resources: [pods]", "resources: [nodes]"}, []string{
			`FAILED: the service account may not get the pod refvol-smoke-reader, or there is none: pods \"refvol-smoke-reader\" is forbidden`,
			"What to do: apply the Role",
		}},
		{
			"never updated",
			[]string{`defaultMode: "0440"`, "defaultMode: \"0440\"\n        updatePolicy: Pinned", update, `UPDATE_SECONDS, value: "10"`},
			[]string{"FAILED: the file was not updated within 10 s", "What to do: kubectl describe pod refvol-smoke-reader"},
		},
		{"wrong mode", []string{`defaultMode: "0440"`, `defaultMode: "0444"`}, // since 1.37 the pod has a message too
			[]string{"FAILED: the pod refvol-smoke-reader is Failed: ", "/smoke/key has the mode 444, not 440"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, text := newNamespace(t), read(t, "../../../../deploy/examples/smoke.yaml")
			// A busy machine may need more time. Of two pairs with the same old text the first one counts.
			pairs := slices.Concat(c.replaced, smokeWithoutRegistry(),
				[]string{start, `START_SECONDS, value: "300"`, update, `UPDATE_SECONDS, value: "120"`})
			for old := range slices.Chunk(pairs, 2) {
				if !strings.Contains(text, old[0]) {
					t.Fatalf("the example lacks %q", old[0])
				}
			}
			newShell(n).apply(strings.NewReplacer(pairs...).Replace(text))
			want := batchv1.JobComplete
			if strings.HasPrefix(c.wants[0], "FAILED") {
				want = batchv1.JobFailed
			}
			n.jobEnds("refvol-smoke", want, c.wants...)
		})
	}
}

// jobEnds waits until a Job has ended as wanted, and the log of its one pod has the texts. The log of a container may be incomplete or
// missing for a moment after its end.
func (n *namespace) jobEnds(name string, want batchv1.JobConditionType, texts ...string) {
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
	if how != want {
		n.t.Errorf("the Job %s is %s, want %s", name, how, want)
	}
	eventually(n.t, podTimeout/2, "the log of the Job "+name, func(ctx context.Context) error {
		log, err := n.log(ctx, n.jobPod(name), &corev1.PodLogOptions{})
		if err == nil && !containsAll(log, texts) {
			err = fmt.Errorf("it lacks one of %q:\n%s", texts, log)
		}
		return err
	})
}
