package manifests

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// soon is how long the API server may take to hear of what it was told.
const soon = time.Minute

// update writes the golden files anew, for who has read the difference:
// go -C e2e test -run TestRights ./suites/manifests -args -update
var update = flag.Bool("update", false, "write testdata/ anew")

// withoutRights are the overlays that bring none.
var withoutRights = []string{"admission", "admission-cross-namespace"}

// kustomizations returns the directories of deploy/ that install the plugin, by name.
func kustomizations(t *testing.T) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(shared.deploy, "overlays"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{"base": filepath.Join(shared.deploy, "base")}
	for _, entry := range entries {
		if !slices.Contains(withoutRights, entry.Name()) {
			found[entry.Name()] = filepath.Join(shared.deploy, "overlays", entry.Name())
		}
	}
	return found
}

// TestRights applies the base and each overlay, and compares all that the plugin's
// account may do then, as the API server tells it, in its own namespace and in another,
// with a golden file.
func TestRights(t *testing.T) {
	for name, dir := range kustomizations(t) {
		t.Run(name, func(t *testing.T) {
			apply(t, dir)
			if strings.HasPrefix(name, "pod-identity") {
				wantNoPayload(t)
			}
			got := rights(t)
			wantNothingBroad(t, got)
			golden := filepath.Join("testdata", "rights-"+name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the account's rights are not those of %s:\n got:\n%s\nwant:\n%s", golden, got, want)
			}
		})
	}
}

// TestNoGoldenFileIsLeftOver: each belongs to an overlay.
func TestNoGoldenFileIsLeftOver(t *testing.T) {
	files, err := filepath.Glob("testdata/rights-*.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := kustomizations(t)
	for _, file := range files {
		if name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "rights-"), ".txt"); known[name] == "" {
			t.Errorf("%s belongs to no overlay", file)
		}
	}
}

// wantNothingBroad holds what must not be in a golden file, however it came there.
func wantNothingBroad(t *testing.T, rights string) {
	t.Helper()
	for _, never := range []string{`\*`, "update", "delete", "deletecollection", "bind", "escalate", "impersonate"} {
		if line := regexp.MustCompile(`(?m)^.*[\[ ]` + never + `[\] ].*$`).FindString(rights + "\n"); line != "" {
			t.Errorf("the account may %s: %s", never, line)
		}
	}
}

// wantNoPayload asks for each right on what volumes show, one by one, in each namespace
// that there is and in all of them at once.
func wantNoPayload(t *testing.T) {
	t.Helper()
	for _, namespace := range []string{"", pluginNamespace, "default"} {
		for _, resource := range []string{"secrets", "configmaps"} {
			for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "*"} {
				asked := authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Resource: resource}
				if err := allowed(t.Context(), pluginUser, pluginGroups(), asked); err == nil {
					t.Errorf("in namespace %q the account may %s %s", namespace, verb, resource)
				}
			}
		}
	}
}

// apply installs the rights that a kustomization has. The end of the test takes them away.
func apply(t *testing.T, dir string) {
	t.Helper()
	t.Cleanup(func() {
		// Also what a namespace holds.
		if _, err := shared.kubectl(context.WithoutCancel(t.Context()), "delete", "--all-namespaces",
			"--selector=app.kubernetes.io/name=refvol-plugin",
			"clusterroles,clusterrolebindings,roles,rolebindings,daemonsets,serviceaccounts,csidrivers"); err != nil {
			t.Error(err)
		}
	})
	mustKubectl(t, "apply", "--kustomize="+dir)
	settle(t)
}

// settle waits until the API server's authorizer, which hears of roles and bindings by
// four watches, has heard of all that was made before the call: each watch keeps the
// order, so it waits for an object of each kind that is made now.
func settle(t *testing.T) {
	t.Helper()
	name := fmt.Sprintf("settled-%d", time.Now().UnixNano())
	for _, args := range [][]string{
		{"create", "clusterrole", name, "--verb=get", "--resource=pods", "--resource-name=cluster"},
		{"create", "clusterrolebinding", name, "--clusterrole=" + name, "--user=" + name},
		{"create", "role", name, "--namespace=" + pluginNamespace, "--verb=get", "--resource=pods", "--resource-name=local"},
		{"create", "rolebinding", name, "--namespace=" + pluginNamespace, "--role=" + name, "--user=" + name},
	} {
		mustKubectl(t, args...)
		t.Cleanup(func() {
			remove := []string{"delete", args[1], name, "--namespace=" + pluginNamespace}
			if _, err := shared.kubectl(context.WithoutCancel(t.Context()), remove...); err != nil {
				t.Error(err)
			}
		})
	}
	for _, object := range []string{"cluster", "local"} {
		asked := authorizationv1.ResourceAttributes{Namespace: pluginNamespace, Verb: "get", Resource: "pods", Name: object}
		harness.Eventually(t, soon, func() error { return allowed(t.Context(), name, nil, asked) })
	}
}

// allowed returns nil if a user may do what is asked.
func allowed(ctx context.Context, user string, groups []string, asked authorizationv1.ResourceAttributes) error {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, Groups: groups, ResourceAttributes: &asked,
	}}
	answer, err := shared.Client().AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err == nil && !answer.Status.Allowed {
		err = fmt.Errorf("%s may not %s %s %q", user, asked.Verb, asked.Resource, asked.Name)
	}
	return err
}

// pluginUser is the plugin's account as the API server knows it.
const pluginUser = "system:serviceaccount:" + pluginNamespace + ":" + pluginAccount

// pluginGroups are the groups that the API server puts that account in.
func pluginGroups() []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + pluginNamespace, "system:authenticated"}
}

// rights returns what the API server says the plugin's account may do.
func rights(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	for _, namespace := range []string{pluginNamespace, "default"} {
		fmt.Fprintf(&text, "# in the namespace %s\n", namespace)
		args := []string{"auth", "can-i", "--list", "--namespace=" + namespace, "--as=" + pluginUser}
		for _, group := range pluginGroups() {
			args = append(args, "--as-group="+group)
		}
		for line := range strings.Lines(mustKubectl(t, args...)) {
			text.WriteString(strings.TrimRight(line, " \n") + "\n")
		}
	}
	return text.String()
}
