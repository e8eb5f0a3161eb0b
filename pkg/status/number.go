package status

import "fmt"

// Number sets Objects, their Versions, and the indices of the volumes' objects, so that the report can be encoded after its volumes were
// changed. An object that no volume names is left out.
func (r *Report) Number() {
	type version struct {
		object *Object
		Version
	}
	objects, versions := map[*Object]int{}, map[version]int{}
	r.Objects = []*Object{}
	for i := range r.Volumes {
		for j := range r.Volumes[i].Objects {
			o := &r.Volumes[i].Objects[j]
			place, found := objects[o.Object]
			if !found {
				place = len(r.Objects)
				objects[o.Object], o.Versions = place, nil
				r.Objects = append(r.Objects, o.Object)
			}
			number := func(v *Version) *int {
				if v == nil {
					return nil
				}
				place, found := versions[version{o.Object, *v}]
				if !found {
					place = len(o.Versions)
					versions[version{o.Object, *v}], o.Versions = place, append(o.Versions, *v)
				}
				return &place
			}
			o.Index, o.ShownIndex, o.AbsentIndex = place, number(o.Shown), number(o.Absent)
		}
	}
}

// resolve sets what the indices of the volumes' objects mean. Another plugin may have sent any index.
func (r *Report) resolve() error {
	for i, o := range r.Objects {
		if o == nil {
			return fmt.Errorf("objects[%d]: Required value", i)
		}
	}
	for i := range r.Volumes {
		for j := range r.Volumes[i].Objects {
			o := &r.Volumes[i].Objects[j]
			if o.Index < 0 || o.Index >= len(r.Objects) {
				return fmt.Errorf("volumes[%d].objects[%d].object: Invalid value: %d: there are %d objects", i, j, o.Index, len(r.Objects))
			}
			o.Object = r.Objects[o.Index]
			for name, at := range map[string]struct {
				index   *int
				version **Version
			}{"shown": {o.ShownIndex, &o.Shown}, "absent": {o.AbsentIndex, &o.Absent}} {
				if at.index == nil {
					continue
				}
				if n := *at.index; n < 0 || n >= len(o.Versions) {
					return fmt.Errorf("volumes[%d].objects[%d].%s: Invalid value: %d: the object has %d versions", i, j, name, n, len(o.Versions))
				}
				*at.version = &o.Versions[*at.index]
			}
		}
	}
	return nil
}
