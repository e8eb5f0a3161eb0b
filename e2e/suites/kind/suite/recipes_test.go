package suite

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/refvol/refvol/internal/doclines"
)

// recipeImage is the image of the recipes. Where no registry can be reached, REFVOL_SHELL_IMAGE
// stands for it: busybox without inotifyd, which the probe is then.
const recipeImage = "docker.io/library/busybox:1.37"

// step is a command of a recipe, and what it prints.
type step struct{ command, prints string }

// recipe is a section of docs/recipes.md or docs/getting-started.md.
type recipe struct {
	title string
	yaml  string
	steps []step
}

// TestRecipes applies the objects of each recipe, does what its commands do, and wants the output
// that the document shows. Only the images and the namespaces are replaced.
func TestRecipes(t *testing.T) {
	var recipes []recipe
	for _, document := range []string{"getting-started.md", "recipes.md"} {
		text, err := os.ReadFile("../../../../docs/" + document)
		if err != nil {
			t.Fatal(err)
		}
		recipes = append(recipes, parseRecipes(t, string(text))...)
	}
	recipes = slices.DeleteFunc(recipes, func(r recipe) bool { return r.yaml == "" })
	if len(recipes) < 5 {
		t.Fatalf("the documents have %d recipes", len(recipes))
	}
	for _, r := range recipes {
		t.Run(r.title, func(t *testing.T) {
			t.Parallel()
			k := newKitchen(t)
			k.apply(t, r.yaml)
			s := newShell(k.namespaces["default"])
			for _, step := range r.steps {
				if step.prints == "" {
					s.output(step.command)
				} else {
					s.prints(step.command, step.prints)
				}
			}
			if r.isOneVolume() {
				k.isWhole(t, r)
			}
		})
	}
}

// isOneVolume tells whether all that a recipe shows is in one volume that switches.
func (r recipe) isOneVolume() bool {
	return strings.Count(r.yaml, "driver: csi.refvol.dev") == 1 && !strings.Contains(r.yaml, "InPlace")
}

// parseRecipes takes the document's sections that have objects or commands.
func parseRecipes(t *testing.T, text string) []recipe {
	t.Helper()
	var recipes []recipe
	for _, section := range regexp.MustCompile(`\n##+ `).Split(text, -1)[1:] {
		title, body, _ := strings.Cut(section, "\n")
		r := recipe{title: title}
		for _, part := range doclines.Parts(body) {
			switch part.Language {
			case "yaml":
				r.yaml += "---\n" + part.Text
			case "sh":
				for _, command := range doclines.Commands(part.Text) {
					r.steps = append(r.steps, step{command: command})
				}
			case "text":
				if len(r.steps) == 0 {
					t.Fatalf("%s: no command prints %q", title, part.Text)
				}
				r.steps[len(r.steps)-1].prints = part.Text
			}
		}
		if r.yaml != "" && len(r.steps) < 3 {
			t.Fatalf("%s: %d steps", title, len(r.steps))
		}
		if r.yaml != "" || len(r.steps) > 0 {
			recipes = append(recipes, r)
		}
	}
	return recipes
}

// kitchen runs one recipe. Each namespace of the document is one of the test's own.
type kitchen struct {
	*cluster
	objects    dynamic.Interface
	namespaces map[string]*namespace
}

func newKitchen(t *testing.T) *kitchen {
	t.Helper()
	c := connect(t)
	objects, err := dynamic.NewForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	return &kitchen{cluster: c, objects: objects, namespaces: map[string]*namespace{}}
}

// in returns the name of the namespace that stands for one of the document.
func (k *kitchen) in(t *testing.T, name string) string {
	t.Helper()
	if k.namespaces[name] == nil {
		k.namespaces[name] = newNamespace(t)
	}
	return k.namespaces[name].name
}

// apply creates all objects.
func (k *kitchen) apply(t *testing.T, text string) {
	t.Helper()
	text = regexp.MustCompile(`namespace: \w+`).ReplaceAllStringFunc(text, func(match string) string {
		return "namespace: " + k.in(t, strings.TrimPrefix(match, "namespace: "))
	})
	for document := range strings.SplitSeq(text, "---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		decoded, kind, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		replaceImages(decoded)
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(decoded)
		if err != nil {
			t.Fatal(err)
		}
		object := &unstructured.Unstructured{Object: fields}
		clusterWide := strings.HasPrefix(kind.Kind, "Cluster")
		if object.GetNamespace() == "" && !clusterWide {
			object.SetNamespace(k.in(t, "default"))
		}
		resource := k.objects.Resource(kind.GroupVersion().WithResource(strings.ToLower(kind.Kind) + "s")).Namespace(object.GetNamespace())
		if _, err := resource.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if clusterWide || object.GetNamespace() == pluginNamespace { // it does not go with the test's own
			t.Cleanup(func() {
				if err := resource.Delete(context.WithoutCancel(t.Context()), object.GetName(), metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// replaceImages has the containers of a workload run REFVOL_SHELL_IMAGE in the place of the recipes' image.
func replaceImages(object runtime.Object) {
	switch o := object.(type) {
	case *corev1.Pod:
		withShell(&o.Spec, recipeImage, "inotifyd")
	case *appsv1.Deployment:
		withShell(&o.Spec.Template.Spec, recipeImage, "inotifyd")
	}
}

// withShell has the containers of an image run REFVOL_SHELL_IMAGE, if that is set. It lacks the program, so the
// probe is put beside it under that name.
func withShell(spec *corev1.PodSpec, image, program string) {
	shell := os.Getenv("REFVOL_SHELL_IMAGE")
	if shell == "" {
		return
	}
	programs := []corev1.Volume{{Name: "programs", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	install := newContainer("programs", programs)
	install.Args = []string{"install", mountDir + "programs/" + program}
	spec.InitContainers = append(spec.InitContainers, install)
	spec.Volumes = append(spec.Volumes, programs...)
	for i := range spec.Containers {
		c := &spec.Containers[i]
		if c.Image == image {
			c.Image, c.ImagePullPolicy = shell, corev1.PullIfNotPresent
		}
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "programs", MountPath: "/usr/bin"})
	}
}

// isWhole wants no line in the log of a recipe's pod that the document doesn't show: a reader sees
// one version of all files, or another.
func (k *kitchen) isWhole(t *testing.T, r recipe) {
	t.Helper()
	shown := ""
	for _, s := range r.steps {
		shown += s.prints
	}
	for _, n := range k.namespaces {
		pods, err := k.client.CoreV1().Pods(n.name).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range pods.Items {
			name, container := pods.Items[i].Name, pods.Items[i].Spec.Containers[0].Name
			log, err := k.client.CoreV1().Pods(n.name).GetLogs(name, &corev1.PodLogOptions{Container: container}).DoRaw(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(log)) {
				if !slices.Contains(slices.Collect(strings.Lines(shown)), line) {
					t.Errorf("the log of %s has %q, which the document doesn't show", name, line)
				}
			}
		}
	}
}
