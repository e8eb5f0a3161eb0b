package volume

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// CanaryShare returns the share of the pods, in percent, for which an object exists where a source names it as a canary. Without the annotation
// that is 0. problem says why an annotation counts as 0, or is "".
func (o *Object) CanaryShare() (percent int, problem string) {
	percent, isValid := ParseShare(o.Canary)
	switch {
	case o.Canary == "":
		return 0, ""
	case !isValid:
		return 0, fmt.Sprintf("the annotation %s is %q, which is not a percentage such as 10%%", CanaryAnnotation, o.Canary)
	case o.Immutable: // the plugin asks for it only once, so nothing could take it back
		return 0, "the object is immutable, so its share could not change"
	}
	return percent, ""
}

// CanaryText returns the share for people, such as 10%, with the problem if there is one.
func (o *Object) CanaryText() string {
	percent, problem := o.CanaryShare()
	if problem != "" {
		problem = ": " + problem
	}
	return fmt.Sprintf("%d%%%s", percent, problem)
}

// Canaries returns the objects that the spec names as canaries.
func (s *Spec) Canaries() map[Ref]bool {
	all := map[Ref]bool{}
	for i := range s.Sources {
		for _, use := range s.Sources[i].References() {
			if use.Canary {
				all[use.Ref] = true
			}
		}
	}
	return all
}

// isCanary reports whether the source shows the keys of a canary.
func (s *Source) isCanary() bool { return s.Projection != nil && s.Projection.Canary }

// checkCanaries refuses an object that is named with and without canary, because it would exist for the pod and not exist.
func (s *Spec) checkCanaries(d *decoder) {
	canaries := s.Canaries()
	for i := range s.Sources {
		for _, use := range s.Sources[i].References() {
			if canaries[use.Ref] && !use.Canary {
				d.add(field.Forbidden(field.NewPath(use.Field), fmt.Sprintf("must not name %s, which is named with canary elsewhere in the volume", use.Ref)))
			}
		}
	}
}

// canary reads the fields canary and optional of a reference. Pods that don't see a canary start without it, so it is optional.
func (p *parser) canary(at *field.Path, canary bool, optional *bool) (isOptional bool) {
	isOptional = ptr.Deref(optional, false)
	if !canary {
		return isOptional
	}
	if optional != nil && !isOptional {
		p.add(field.Forbidden(at.Child("optional"), "must not be false beside canary: pods that don't see the canary start without it"))
	}
	if p.canaryAt == nil {
		p.canaryAt = at.Child("canary")
	}
	return true
}

// noCanary refuses the field canary in a file that is made of several objects and would mean something else without one of them.
func (p *parser) noCanary(at *field.Path, canary bool) {
	if canary {
		p.add(field.Forbidden(at.Child("canary"), "must not be set in join and expand, whose text would mean something else without a part of it"))
	}
}

// withCanaries refuses canaries in a volume that can't have them, and puts their sources behind all others, so that their keys win.
func (p *parser) withCanaries(spec *Spec) {
	if p.canaryAt == nil {
		return
	}
	refuse := func(is bool, what, why string) {
		if is {
			p.add(field.Forbidden(p.canaryAt, "must not be true beside "+what+": "+why))
		}
	}
	refuse(spec.Pinned(), "updatePolicy Pinned", "such a volume never changes")
	refuse(spec.SameRevision, "sameRevision", "a canary carries another revision than the objects that it is tried against")
	refuse(spec.InPlace(), "writeStrategy InPlace", "a file that only the canary has would become empty when it is taken back, and would not go")
	canaries := slices.DeleteFunc(slices.Clone(spec.Sources), func(s Source) bool { return !s.isCanary() })
	spec.Sources = append(slices.DeleteFunc(spec.Sources, func(s Source) bool { return s.isCanary() }), canaries...)
}
