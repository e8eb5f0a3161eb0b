package nodeidentity

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/rights"
)

// The claims of a token that is bound to a pod, as the API server names them in a review.
const (
	podNameKey  = "authentication.kubernetes.io/pod-name"
	nodeNameKey = "authentication.kubernetes.io/node-name"
)

// firstMinor is the minor version of Kubernetes in which constrained impersonation is on by
// default.
const firstMinor = 36

// ask returns nil if the API server lets the plugin read as its node, else what is wrong, and which rights are
// missing.
//
// A request for the plugin's own pod is the proof: it needs the feature gate, the rules, the
// Node authorizer and a token that is bound to a pod of the node. A review of the rights is
// none, as RBAC doesn't know of the first and the third.
func (q *questions) ask(ctx context.Context) (missing []string, err error) {
	account, pod, err := q.whoAsks(ctx)
	if err != nil {
		return nil, err
	}
	_, err = q.opts.PodsAsNode(account.namespace).Get(ctx, pod, metav1.GetOptions{})
	switch {
	case err == nil:
		return q.askRights(ctx, account)
	case !apierrors.IsForbidden(err):
		return nil, rights.NoAnswer(fmt.Errorf("get the plugin's own pod %s/%s as %s: %w", account.namespace, pod, User(q.opts.NodeName), err))
	case !strings.Contains(err.Error(), "User "+strconv.Quote(User(q.opts.NodeName))):
		return q.refused(ctx, account, err)
	case strings.Contains(err.Error(), "no relationship found"):
		return nil, fmt.Errorf("the API server's Node authorizer does not know the plugin's own pod %s/%s yet: %w", account.namespace, pod, err)
	}
	// A webhook, or a right to impersonate users, may have let the impersonation through as well.
	return nil, fmt.Errorf("the API server's Node authorizer did not decide: is --authorization-mode=Node,RBAC set? %w", err)
}

// account is a service account.
type account struct{ namespace, name string }

// whoAsks returns the plugin's account and the name of its pod, by the claims of its token.
func (q *questions) whoAsks(ctx context.Context) (self account, pod string, err error) {
	review, err := q.opts.Reviews.Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return self, "", rights.NoAnswer(fmt.Errorf("ask whose the plugin's token is: %w", err))
	}
	user := review.Status.UserInfo
	names, ok := strings.CutPrefix(user.Username, "system:serviceaccount:")
	self.namespace, self.name, _ = strings.Cut(names, ":")
	pod, node := claim(user, podNameKey), claim(user, nodeNameKey)
	switch {
	case !ok || pod == "":
		return self, "", fmt.Errorf("the plugin's credential, of %q, is not bound to a pod: only the token that the kubelet mounts into the plugin's pod may impersonate the node (no --kubeconfig)", user.Username)
	case node == "":
		return self, "", fmt.Errorf("the plugin's token has no claim of a node (%s)%s", nodeNameKey, q.versionText(ctx))
	case node != q.opts.NodeName:
		return self, "", fmt.Errorf("the plugin's token is that of a pod on node %q, and --node-name is %q: it may impersonate its own node only", node, q.opts.NodeName)
	}
	return self, pod, nil
}

func claim(user authenticationv1.UserInfo, key string) string {
	if values := user.Extra[key]; len(values) == 1 {
		return values[0]
	}
	return ""
}

// refused says why the API server refuses the impersonation itself.
func (q *questions) refused(ctx context.Context, self account, refusal error) ([]string, error) {
	if missing, err := q.askRights(ctx, self); err != nil {
		return missing, err
	}
	return nil, fmt.Errorf("the API server's feature gate ConstrainedImpersonation is off%s: %w", q.versionText(ctx), refusal)
}

// askRights returns nil if the account has all rights that it needs, by one review for each verb and
// resource.
func (q *questions) askRights(ctx context.Context, self account) ([]string, error) {
	missing, err := rights.Missing(ctx, q.opts.AccessReviews, q.needs)
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("the plugin's account %s/%s lacks rights that --identity=node needs: %s", self.namespace, self.name, strings.Join(missing, ", "))
	}
	return missing, err
}

// versionText says which version the API server has, and whether that is too old, as far as
// it tells.
func (q *questions) versionText(ctx context.Context) string {
	info, err := q.opts.Version(ctx)
	if err != nil {
		return ""
	}
	text := " (its version is " + info.GitVersion
	major, minor := info.Major, info.Minor
	if info.EmulationMinor != "" && (info.EmulationMajor != major || info.EmulationMinor != minor) {
		major, minor = info.EmulationMajor, info.EmulationMinor
		text += ", emulating " + major + "." + minor
	}
	if isBefore(major, minor) {
		text += "; the gate is on by default from 1." + strconv.Itoa(firstMinor) + " on"
	}
	return text + ")"
}

// isBefore tells whether a version is certainly older than the first with the gate on.
func isBefore(major, minor string) bool {
	n, err := strconv.Atoi(strings.TrimRight(minor, "+"))
	return major == "1" && err == nil && n < firstMinor
}
