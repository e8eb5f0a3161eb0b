package deploy

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/check"
	"github.com/refvol/refvol/pkg/volume"
)

// exampleNamespace is where a reader is assumed to apply the examples.
const exampleNamespace = "default"

func TestExamples(t *testing.T) {
	files, err := filepath.Glob("examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d examples, error %v", len(files), err)
	}
	readme := must.Get(os.ReadFile("examples/README.md"))(t)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			manifests := must.Get(os.ReadFile(file))(t)
			if !strings.Contains(string(readme), "`"+filepath.Base(file)+"`") {
				t.Error("examples/README.md does not name it")
			}
			if !strings.HasPrefix(string(manifests), "# ") {
				t.Error("must start with a comment that says what it shows")
			}
			objects := decode(t, file, manifests)
			if filepath.Base(file) == "gate.yaml" { // it is about volumes that others have; the kind suite runs it
				for _, object := range objects {
					accessor := must.Get(meta.Accessor(object))(t)
					if !strings.Contains(accessor.GetNamespace()+"/"+accessor.GetName(), "shop") {
						t.Errorf("the gate for another namespace, made as its comment says, would replace the object %s", accessor.GetName())
					}
				}
				return
			}
			checkImages(t, only[*corev1.Pod](t, objects).Spec)
			opts := check.Options{Cluster: brought(objects)}
			switch filepath.Base(file) {
			case "pod-identity.yaml":
				opts.PodVerbs = authz.PodVerbs(true)
			case "cross-namespace.yaml": // its owner consents to one object, and to nothing more
				rules := only[*rbacv1.Role](t, objects).Rules
				if len(rules) != 1 || len(rules[0].Resources) != 1 || len(rules[0].ResourceNames) != 1 || len(rules[0].Verbs) != 1 {
					t.Errorf("the Role has %v", rules)
				}
			}
			checkVolumes(t, opts, manifests)
		})
	}
}

// checkImages wants images that every cluster can pull, at a version.
func checkImages(t *testing.T, spec corev1.PodSpec) {
	t.Helper()
	for _, container := range spec.Containers {
		if !strings.HasPrefix(container.Image, "docker.io/library/busybox:1.") && !strings.HasPrefix(container.Image, "docker.io/curlimages/curl:8.") {
			t.Errorf("container %s: image = %q, want docker.io/library/busybox:1.x or docker.io/curlimages/curl:8.x", container.Name, container.Image)
		}
	}
}

// checkVolumes has `kubectl refvol check` find no problem, and a volume of the driver that shows something.
func checkVolumes(t *testing.T, opts check.Options, manifests []byte) {
	t.Helper()
	opts.Driver, opts.Namespace = driverName, exampleNamespace
	checker := must.Get(check.New(opts))(t)
	must.Do(t, checker.Add(t.Context(), "manifests", bytes.NewReader(manifests)))
	report := checker.Report()
	shows := slices.ContainsFunc(report.Workloads, func(w check.Workload) bool {
		return slices.ContainsFunc(w.References, func(r check.Reference) bool { return r.Refvol })
	})
	if len(report.Problems) > 0 || !shows {
		t.Errorf("problems %v in %+v", report.Problems, report.Workloads)
	}
}

// brought is a cluster that has what an example brings: its ConfigMaps and Secrets, and the rights that its Roles give.
type brought []runtime.Object

func (b brought) Lookup(_ context.Context, ref volume.Ref) (check.Object, error) {
	for _, object := range b {
		found := check.Object{Exists: check.Yes}
		switch object := object.(type) {
		case *corev1.ConfigMap:
			found.Data, found.BinaryData = sets.KeySet(object.Data), sets.KeySet(object.BinaryData)
		case *corev1.Secret:
			found.Data = sets.KeySet(object.StringData)
		}
		accessor, err := meta.Accessor(object)
		if err != nil {
			return found, err
		}
		kind := volume.Kind(object.GetObjectKind().GroupVersionKind().Kind)
		if ref == (volume.Ref{Kind: kind, Namespace: cmp.Or(accessor.GetNamespace(), exampleNamespace), Name: accessor.GetName()}) {
			return found, nil
		}
	}
	return check.Object{Exists: check.No}, nil
}

// CanI answers by the Roles and the bindings that the example brings. One that gives a right to others, too, gives none here.
func (b brought) CanI(_ context.Context, account volume.ServiceAccount, ref volume.Ref, verb string) (check.Answer, error) {
	subject := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}
	bound := map[rbacv1.RoleRef]bool{}
	for _, object := range b {
		if to, ok := object.(*rbacv1.RoleBinding); ok && to.Namespace == ref.Namespace && slices.Equal(to.Subjects, []rbacv1.Subject{subject}) {
			bound[to.RoleRef] = true
		}
	}
	for _, object := range b {
		role, ok := object.(*rbacv1.Role)
		if !ok || role.Namespace != ref.Namespace || !bound[rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name}] {
			continue
		}
		for _, r := range role.Rules {
			if slices.Equal(r.APIGroups, []string{""}) && slices.Contains(r.ResourceNames, ref.Name) && slices.Contains(r.Resources, ref.Kind.Resource()) && slices.Contains(r.Verbs, verb) {
				return check.Yes, nil
			}
		}
	}
	return check.No, nil
}

func (brought) Text(context.Context, volume.Ref, string) ([]byte, error) { return nil, nil }
