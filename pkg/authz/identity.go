package authz

// The values of --identity.
const (
	IdentityPlugin = "plugin"
	IdentityPod    = "pod"
	IdentityNode   = "node"
)

// PodVerbs returns the rights to an object that a pod's service account needs with --identity=pod. The last one is the right that an open
// watch, or the next request, needs.
func PodVerbs(watches bool) []string {
	if watches {
		return []string{"get", "list", "watch"}
	}
	return []string{"get"}
}
