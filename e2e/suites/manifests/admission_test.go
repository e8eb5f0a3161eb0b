package manifests

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

// consumer is the namespace of the pods that the policy judges.
const consumer = "default"

// variant is a set of components with the policy, and how the plugin parses volumes then.
type variant struct {
	components []string
	options    []volume.Option
}

func variants() []variant {
	return []variant{
		{components: []string{"admission"}},
		{[]string{"admission", "cross-namespace"}, []volume.Option{volume.AcrossNamespaces()}},
	}
}

func (v variant) name() string { return strings.Join(v.components, "+") }

func (v variant) across() bool { return len(v.options) > 0 }

// refused are the volumes that both the plugin and the policy of the variant refuse.
func (v variant) refused() []refusal {
	return slices.DeleteFunc(refused(), func(r refusal) bool { return r.forbidsAcross && v.across() })
}

type attributes = map[string]string

func inline(a attributes) corev1.Volume {
	yes := true
	return corev1.Volume{Name: "settings", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
		Driver: harness.DriverName, ReadOnly: &yes, VolumeAttributes: a,
	}}}
}

// podWith is a pod that the API server takes, with the volumes.
func podWith(name string, volumes ...corev1.Volume) *corev1.Pod {
	for i := range volumes {
		if i > 0 {
			volumes[i].Name += fmt.Sprintf("-%d", i)
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "localhost/none"}},
			Volumes:    volumes,
		},
	}
}

func try(ctx context.Context, pod *corev1.Pod) error {
	_, err := shared.Client().CoreV1().Pods(consumer).Create(ctx, pod, dryRun())
	return err
}

// awaitRefusal waits until the API server refuses the pod with the text. Another policy may refuse it
// for a moment, or a request may fail otherwise.
func awaitRefusal(t *testing.T, pod *corev1.Pod, text string) {
	t.Helper()
	harness.Eventually(t, soon, func() error {
		if err := try(t.Context(), pod); err == nil || !strings.Contains(err.Error(), text) {
			return fmt.Errorf("got %v, want a refusal with %q", err, text)
		}
		return nil
	})
}

// TestAdmission applies each of the two sets and looks at it from all sides.
func TestAdmission(t *testing.T) {
	for _, v := range variants() {
		t.Run(v.name(), func(t *testing.T) {
			old := must.Get(shared.Client().CoreV1().Pods(consumer).Create(t.Context(),
				podWith("old", inline(attributes{"bogus": "x"})), metav1.CreateOptions{}))(t)
			install(t, v.components...)
			awaitRefusal(t, podWith("sentinel", writable(nil)), "ValidatingAdmissionPolicy '"+policyName+"'")
			t.Run("speaks as the plugin", func(t *testing.T) { speaksAsThePlugin(t, v) })
			t.Run("lets through", func(t *testing.T) { letsThrough(t, v) })
			t.Run("knows every attribute", knowsEveryAttribute)
			t.Run("examples", func(t *testing.T) { judgesExamples(t, v) })
			t.Run("names every volume", func(t *testing.T) { namesEveryVolume(t, v) })
			t.Run("odd names", hasAMessageForOddNames)
			t.Run("more than the plugin", func(t *testing.T) { refusesMoreThanThePlugin(t, v) })
			t.Run("pods that are there", func(t *testing.T) { leavesAlone(t, old) })
		})
	}
}

// speaksAsThePlugin: what the plugin would refuse at the publish, the API server refuses
// at the pod's creation, in the plugin's words.
func speaksAsThePlugin(t *testing.T, v variant) {
	for _, test := range v.refused() {
		t.Run(test.name, func(t *testing.T) {
			err := try(t.Context(), podWith("app", test.volume()))
			wantRefusal(t, err, append(test.words(t, v), "volume settings: ", "ValidatingAdmissionPolicy 'refvol-volumes'")...)
		})
	}
}

// words returns what the plugin says to the volume, one text for each thing that is wrong.
func (r refusal) words(t *testing.T, v variant) []string {
	t.Helper()
	if r.writable != nil {
		return []string{"readOnly: Required value: must be true"}
	}
	_, err := volume.Parse(r.attributes, volume.Pod{Namespace: consumer, Name: "app"}, v.options...)
	if err == nil {
		t.Fatal("the plugin takes what it should refuse")
	}
	var words []string
	for _, err := range each(err) {
		text := err.Error()
		if r.hidden { // in YAML, of which the policy knows no paths
			text = text[strings.LastIndex(text, `": `)+len(`": `):]
		}
		words = append(words, text)
	}
	return words
}

// letsThrough: what the plugin would publish, and what is not its own.
func letsThrough(t *testing.T, v variant) {
	for name, pod := range accepted(v.across()) {
		t.Run(name, func(t *testing.T) {
			for i := range pod.Spec.Volumes {
				wantParsed(t, &pod.Spec.Volumes[i], v)
			}
			wantRefusal(t, try(t.Context(), pod))
		})
	}
}

// leavesAlone: a pod that would be refused now can change, and go.
func leavesAlone(t *testing.T, pod *corev1.Pod) {
	pods := shared.Client().CoreV1().Pods(consumer)
	pod.Labels = map[string]string{"changed": "yes"}
	must.Get(pods.Update(t.Context(), pod, metav1.UpdateOptions{}))(t)
	must.Do(t, pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
}

// wantParsed wants the plugin's parser to take a volume of the driver.
func wantParsed(t *testing.T, v *corev1.Volume, of variant) {
	t.Helper()
	if v.CSI == nil || v.CSI.Driver != harness.DriverName {
		return
	}
	if _, err := volume.Parse(v.CSI.VolumeAttributes, volume.Pod{Namespace: consumer, Name: "app"}, of.options...); err != nil {
		t.Errorf("the plugin would refuse it: %v", err)
	}
}

func knowsEveryAttribute(t *testing.T) {
	_, err := volume.Parse(attributes{"bogus": "x"}, volume.Pod{Namespace: consumer})
	if err == nil {
		t.Fatal("bogus is an attribute")
	}
	_, list, ok := strings.Cut(each(err)[0].Error(), "known are ")
	if !ok {
		t.Fatalf("%q lists no attributes", err)
	}
	names := strings.Split(list, ", ")
	if len(names) < 10 || !slices.Contains(names, "onDelete") {
		t.Fatalf("%q is not the list of attributes", names)
	}
	for _, name := range names {
		err := try(t.Context(), podWith("app", inline(attributes{name: "x"})))
		if err != nil && strings.Contains(err.Error(), "unknown attribute") {
			t.Errorf("the policy does not know %s: %v", name, err)
		}
	}
}

func judgesExamples(t *testing.T, v variant) {
	files, err := filepath.Glob(filepath.Join(shared.deploy, "examples", "*.yaml"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	t.Cleanup(func() {
		_, err := shared.kubectl(context.WithoutCancel(t.Context()), "delete", "pods", "--field-selector=metadata.name!=old",
			"--all-namespaces", "--force")
		if err != nil {
			t.Error(err)
		}
	})
	apply := []string{"apply"}
	for _, file := range files {
		if filepath.Base(file) != "gate.yaml" { // it has no pod, and is for a namespace that is there
			apply = append(apply, "--filename="+file)
		}
	}
	switch _, err := shared.kubectl(t.Context(), apply...); {
	case v.across():
		wantRefusal(t, err)
	default: // of one example
		wantRefusal(t, err, `The pods "refvol-cross-namespace" is invalid`, "this node's plugin shows no objects of others (--cross-namespace)")
		if strings.Count(fmt.Sprint(err), "denied request") != 1 {
			t.Errorf("more is refused: %v", err)
		}
	}
}
